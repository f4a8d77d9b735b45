//! What is measured: times in HDR histograms, and counts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::load::outcome::{Counts, Fault, FaultExample, Faults, MAX_EXAMPLES, Percentiles};

/// The longest time that is told apart, in microseconds: ten minutes.
const LONGEST: u64 = 600_000_000;

/// Points of a distribution's curve: ten for each halving of what is above.
const TICKS: u32 = 10;

/// Times in microseconds, with three significant digits.
#[derive(Clone, Debug)]
pub(super) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are in order and the digits at most 5"))
    }
}

impl Times {
    /// Records the time from `due` until `now`, both in microseconds.
    pub(super) fn record(&mut self, due: u64, now: u64) {
        self.0.saturating_record(now.saturating_sub(due).max(1));
    }

    /// How many were recorded.
    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// How many took longer than so many milliseconds.
    pub(super) fn longer_than(&self, ms: f64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limits are small and not below 0")]
        let micros = (ms * 1000.0) as u64;
        self.0.len() - self.0.count_between(0, micros)
    }

    /// Milliseconds within which this part lies; none if nothing was recorded.
    pub(super) fn ms(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| ms(self.0.value_at_quantile(quantile)))
    }

    /// The distribution; none if nothing was recorded.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let times = &self.0;
        let at = |quantile| ms(times.value_at_quantile(quantile));
        let curve = times.iter_quantiles(TICKS).map(|step| (step.quantile_iterated_to(), ms(step.value_iterated_to())));
        (!times.is_empty()).then(|| Percentiles {
            count: times.len(),
            mean_ms: times.mean() / 1000.0,
            min_ms: ms(times.min()),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(times.max()),
            curve: curve.collect(),
        })
    }
}

fn ms(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// Everything that connections measure.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) join: Times,
    pub(super) accepted: Times,
    pub(super) stored: Times,
    pub(super) delivery: Times,
    /// From when a comment was to be sent until it was.
    pub(super) lateness: Times,
    pub(super) counts: Counts,
    pub(super) faults: Faults,
    /// Why connections did not come about.
    pub(super) connect_failures: BTreeMap<String, u64>,
    /// Connections open now.
    pub(super) open: u64,
    /// Deliveries of this second.
    pub(super) this_second: Times,
}

impl Figures {
    pub(super) fn error(&mut self, kind: &str) {
        count(&mut self.counts.errors, kind);
    }

    pub(super) fn refuse(&mut self, code: &str) {
        count(&mut self.counts.refused, code);
    }

    pub(super) fn misbehaved(&mut self, code: &str) {
        count(&mut self.counts.misbehaved, code);
    }

    pub(super) fn close(&mut self, code: u16) {
        count(&mut self.counts.closes, &code.to_string());
    }

    /// Counts a fault so many times; the example is made when there is room for it.
    pub(super) fn fault(&mut self, fault: Fault, times: u64, example: impl FnOnce() -> FaultExample) {
        let faults = &mut self.faults;
        let count = match fault {
            Fault::Lost => &mut faults.lost,
            Fault::Doubled => &mut faults.doubled,
            Fault::OutOfOrder => &mut faults.out_of_order,
            Fault::WrongRoom => &mut faults.wrong_room,
            Fault::Damaged => &mut faults.damaged,
            Fault::GapUntold => &mut faults.gaps_untold,
            Fault::GapTold => &mut faults.gaps_told,
        };
        *count += times;
        if times > 0 && faults.examples.len() < MAX_EXAMPLES {
            faults.examples.push(FaultExample { fault, ..example() });
        }
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_owned(), 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_when_they_were_due() {
        let mut times = Times::default();
        assert_eq!((times.ms(0.5), times.percentiles()), (None, None));
        for late in 1..=1000 {
            times.record(5_000, 5_000 + late * 1000);
        }
        let all = times.percentiles().unwrap();
        assert_eq!((all.count, all.min_ms.round(), all.max_ms.round()), (1000, 1.0, 1000.0));
        assert!((all.p50_ms - 500.0).abs() < 2.0 && (all.p999_ms - 999.0).abs() < 2.0, "{all:?}");
        assert!(all.curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1) && all.curve.len() > 20, "{:?}", all.curve);
        assert_eq!(all.curve.last().map(|last| last.0), Some(1.0));
    }
}
