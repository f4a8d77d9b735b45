//! When what is to be sent. It follows from the plan and its seed alone: a server that slows down cannot slow down what it is
//! measured with.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::{Plan, Rate, Sending};
use crate::load::trace::Line;

/// A comment that is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    /// When, from the begin of the sending.
    pub at: Duration,
    /// The room's number.
    pub room: usize,
    /// The recorded user; none for whoever's turn it is.
    pub user: Option<u64>,
    /// Characters in its text.
    pub chars: usize,
    /// Bytes in its text.
    pub bytes: usize,
    /// Mode, colour and size, where they are recorded.
    pub style: [Option<i64>; 3],
}

/// All comments of a run, in order of their times.
#[derive(Debug)]
pub struct Schedule {
    source: Source,
    rng: Rng,
    /// The upper ends of the rooms' parts of 1.
    ends: Vec<f64>,
    duration: f64,
}

#[derive(Debug)]
enum Source {
    Rate { rate: Rate, at: f64 },
    Trace { lines: Arc<Vec<Line>>, next: usize, speed: f64, from: Duration },
}

impl Schedule {
    /// The plan's schedule.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut sum = 0.0;
        let ends = plan.seating.rooms.iter().map(|room| {
            sum += room.part;
            sum
        });
        let ends = ends.collect();
        let source = match &plan.sending {
            Sending::Rate(rate) => Source::Rate { rate: rate.clone(), at: 0.0 },
            Sending::Trace { lines, speed, from } => {
                let next = lines.partition_point(|line| line.at < *from);
                Source::Trace { lines: Arc::clone(lines), next, speed: *speed, from: *from }
            }
        };
        Self { source, rng: Rng::with_seed(plan.seed), ends, duration: plan.duration.as_secs_f64() }
    }

    fn room(&mut self) -> usize {
        let spot = self.rng.f64();
        self.ends.partition_point(|end| *end <= spot).min(self.ends.len().saturating_sub(1))
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        let rooms = self.ends.len() as u64;
        match &mut self.source {
            Source::Trace { lines, next, speed, from } => {
                let line = lines.get(*next)?;
                *next += 1;
                let at = line.at.saturating_sub(*from).as_secs_f64() / *speed;
                let room = usize::try_from(line.user % rooms.max(1)).unwrap_or(0);
                let (chars, bytes) = (line.text.chars().count(), line.text.len());
                let style = [line.mode, line.color, line.size];
                let due = Due { at: Duration::from_secs_f64(at), room, user: Some(line.user), chars, bytes, style };
                (at < self.duration).then_some(due)
            }
            Source::Rate { rate, at } => {
                let step = if rate.is_poisson { -(1.0 - self.rng.f64()).ln() } else { 1.0 };
                *at = rate.after(*at, step);
                let (at, chars) = (*at, self.rng.usize(rate.chars.clone()));
                if at >= self.duration {
                    return None;
                }
                // Three of four have ideographs alone, which are 3 bytes each; the others some letters as well.
                let bytes = if self.rng.u8(..4) > 0 { 3 * chars } else { self.rng.usize(2 * chars..=3 * chars) };
                let room = self.room();
                Some(Due { at: Duration::from_secs_f64(at), room, user: None, chars, bytes, style: [None; 3] })
            }
        }
    }
}

impl Rate {
    /// The most comments a second.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.mean * self.burst.max(1.0)
    }

    /// Comments that come within so many seconds from the begin, as a mean.
    #[must_use]
    pub fn expected(&self, secs: f64) -> f64 {
        let (period, length) = (self.burst_every.as_secs_f64(), self.burst_for.as_secs_f64());
        let whole = (secs / period).floor();
        let begin = (period - length) / 2.0;
        let within = whole * length + (secs - whole * period - begin).clamp(0.0, length);
        self.mean * (secs + (self.burst - 1.0) * within)
    }

    /// The rate at a time, and when it changes next.
    fn at(&self, secs: f64) -> (f64, f64) {
        let (period, length) = (self.burst_every.as_secs_f64(), self.burst_for.as_secs_f64());
        let start = (secs / period).floor() * period;
        let begin = start + (period - length) / 2.0;
        let changes = [(begin, self.mean), (begin + length, self.mean * self.burst), (start + period, self.mean)];
        // Where arithmetic has it that a change is here, it is behind us.
        let next = changes.into_iter().find(|(at, _)| *at > secs + 1e-9);
        next.map_or((self.mean, secs + 1.0), |(at, rate)| (rate, at))
    }

    /// The time by which `step` more comments are to be expected.
    fn after(&self, mut secs: f64, mut step: f64) -> f64 {
        loop {
            let (rate, until) = self.at(secs);
            let here = (until - secs) * rate;
            if step <= here {
                return secs + step / rate;
            }
            step -= here;
            secs = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::tests::plan;
    use super::*;

    fn times(toml: &str) -> Vec<f64> {
        Schedule::new(&plan(toml)).map(|due| due.at.as_secs_f64()).collect()
    }

    fn count(times: &[f64], from: f64, until: f64) -> usize {
        times.iter().filter(|at| (from..until).contains(*at)).count()
    }

    #[test]
    fn even_arrivals_come_one_by_one_at_the_rate() {
        let times = times("rate = 20\narrivals = 'even'\nduration = '10s'");
        assert_eq!(times.len(), 199);
        assert!(times.iter().enumerate().all(|(i, at)| (at - (i + 1) as f64 * 0.05).abs() < 1e-6));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_as_their_mean_and_are_uneven() {
        let times = times("rate = 100\nduration = '100s'\nviewers = 1000");
        assert!((9_600..10_400).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        // Of gaps with an exponential distribution e^-2 are longer than twice the mean.
        let long = gaps.iter().filter(|gap| **gap > 0.02).count() as f64 / gaps.len() as f64;
        assert!((0.12..0.15).contains(&long), "{long}");
    }

    #[test]
    fn a_burst_is_as_many_times_the_mean_and_in_the_middle() {
        let toml = "rate = 10\narrivals = 'even'\nburst = 20\nburst_for = '2s'\nburst_every = '10s'\nduration = '20s'\nviewers = 500";
        let times = times(toml);
        assert_eq!(count(&times, 4.0001, 6.0001), 400);
        assert_eq!(count(&times, 14.0001, 16.0001), 400);
        assert!((39..=41).contains(&count(&times, 0.0, 4.0001)));
        let Sending::Rate(rate) = plan(toml).sending else { panic!("a rate") };
        assert!((rate.expected(20.0) - times.len() as f64).abs() <= 1.0, "{} {}", rate.expected(20.0), times.len());
        assert_eq!(rate.peak(), 200.0);
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        let toml = |seed| format!("rooms = 5\nviewers = 50\nskew = 1\nrate = 50\nseed = {seed}");
        let all = |seed| Schedule::new(&plan(&toml(seed))).collect::<Vec<_>>();
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        let first = all(7).iter().filter(|due| due.room == 0).count() as f64 / all(7).len() as f64;
        // 1 of 1 + 1/2 + … + 1/5 = 2.28.
        assert!((0.40..0.48).contains(&first), "{first}");
    }

    #[test]
    fn a_trace_keeps_its_times_and_lengths() {
        let all: Vec<_> =
            Schedule::new(&plan("trace = 'evening'\ntrace_speed = 60\ntrace_from = '10m'\nduration = '10s'")).collect();
        let recorded = super::super::shipped::evening().unwrap();
        let first = recorded.iter().position(|line| line.at >= Duration::from_secs(600)).unwrap();
        assert!((1000..3000).contains(&all.len()), "{}", all.len());
        for (due, line) in all.iter().zip(&recorded[first..]) {
            let at = (line.at.as_secs_f64() - 600.0) / 60.0;
            assert!((due.at.as_secs_f64() - at).abs() < 1e-6);
            assert_eq!((due.chars, due.bytes, due.user), (line.text.chars().count(), line.text.len(), Some(line.user)));
        }
    }
}
