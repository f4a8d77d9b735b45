//! Objectives: what a load test must show, such as `p99=200ms,lost=0`, and whether it did.
//!
//! Each is `name=limit` and holds when what was measured is at most the limit. One about something that was not
//! measured is broken, and says so: a pipeline must not pass because a server told no figures.

mod measure;

use bytesize::ByteSize;
use thiserror::Error;

use super::outcome::{Judged, Outcome};
use super::units;
use measure::Unit;
pub use measure::{Measure, Path, Rank};

/// Why objectives cannot be understood. Each is one line for people.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ObjectiveError {
    /// There is none, or nothing between two commas.
    #[error("an objective is missing in {text:?}; objectives are written like p99=200ms,lost=0")]
    Missing {
        /// All of them, as given.
        text: String,
    },
    /// It has no limit.
    #[error("objective {part:?} names no limit; objectives are written like p99=200ms,lost=0")]
    NoLimit {
        /// The objective, as given.
        part: String,
    },
    /// No such name.
    #[error("there is no objective {name:?}; there are {}", known())]
    Unknown {
        /// The name, as given.
        name: String,
    },
    /// The limit is none.
    #[error("objective {name}: {limit:?} is no {expected}")]
    Limit {
        /// The objective's name.
        name: String,
        /// The limit, as given.
        limit: String,
        /// What would be right.
        expected: &'static str,
    },
    /// It is given twice.
    #[error("objective {name} is given twice")]
    Twice {
        /// The objective's name.
        name: String,
    },
}

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    text: String,
    measure: Measure,
    limit: Limit,
}

/// The most that may be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// In the measure's own unit: milliseconds, cores, bytes, or a count.
    Most(f64),
    /// Of as many as could have been.
    Share(f64),
}

impl Objective {
    /// What is measured.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The most that may be measured, in the measure's own unit; none for a share.
    #[must_use]
    pub fn most(&self) -> Option<f64> {
        match self.limit {
            Limit::Most(most) => Some(most),
            Limit::Share(_) => None,
        }
    }

    /// Judges it against what was measured.
    #[must_use]
    pub fn judge(&self, outcome: &Outcome) -> Judged {
        let (measured, limit) = match self.limit {
            Limit::Most(most) => (self.measure.value(outcome), most),
            Limit::Share(share) => (self.measure.share(outcome), share),
        };
        let told = measured.map_or_else(|| "not measured".to_owned(), |measured| self.told(measured));
        // A figure that is none (NaN) is not at most the limit either.
        Judged { objective: self.text.clone(), measured: told, is_held: measured.is_some_and(|value| value <= limit) }
    }

    fn told(&self, measured: f64) -> String {
        match self.limit {
            Limit::Share(_) => units::percent(measured),
            Limit::Most(_) => self.measure.unit().told(measured),
        }
    }
}

/// Understands objectives separated by commas.
///
/// # Errors
/// [`ObjectiveError`], the first that is wrong; the command line is, so exit with its code for that.
pub fn parse(text: &str) -> Result<Vec<Objective>, ObjectiveError> {
    let mut objectives: Vec<Objective> = Vec::new();
    for part in text.split(',').map(str::trim) {
        if part.is_empty() {
            return Err(ObjectiveError::Missing { text: text.to_owned() });
        }
        let objective = parse_one(part)?;
        if objectives.iter().any(|other| other.measure == objective.measure) {
            return Err(ObjectiveError::Twice { name: objective.measure.name() });
        }
        objectives.push(objective);
    }
    Ok(objectives)
}

fn parse_one(part: &str) -> Result<Objective, ObjectiveError> {
    let Some((name, limit)) = part.split_once('=') else {
        return Err(ObjectiveError::NoLimit { part: part.to_owned() });
    };
    let (name, limit) = (name.trim(), limit.trim());
    let Some(measure) = Measure::named(name) else {
        return Err(ObjectiveError::Unknown { name: name.to_owned() });
    };
    let unit = measure.unit();
    let Some(parsed) = parse_limit(unit, limit) else {
        let expected = unit.expected();
        return Err(ObjectiveError::Limit { name: measure.name(), limit: limit.to_owned(), expected });
    };
    Ok(Objective { text: format!("{}={limit}", measure.name()), measure, limit: parsed })
}

fn parse_limit(unit: Unit, limit: &str) -> Option<Limit> {
    match unit {
        Unit::Millis => Some(Limit::Most(humantime::parse_duration(limit).ok()?.as_secs_f64() * 1_000.0)),
        Unit::Count => Some(Limit::Most(digits(limit)? as f64)),
        Unit::CountOrShare => match limit.strip_suffix('%') {
            Some(percent) => Some(Limit::Share(decimal(percent).filter(|percent| *percent <= 100.0)? / 100.0)),
            None => Some(Limit::Most(digits(limit)? as f64)),
        },
        Unit::Cores => match limit.strip_suffix('%') {
            Some(percent) => Some(Limit::Most(decimal(percent)? / 100.0)),
            None => Some(Limit::Most(decimal(limit)?)),
        },
        // Without its unit a size is more likely a slip than meant in bytes.
        Unit::Bytes if !limit.ends_with(['b', 'B']) => None,
        Unit::Bytes => Some(Limit::Most(limit.parse::<ByteSize>().ok()?.as_u64() as f64)),
    }
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A number of digits and at most one point; none of the exponents, signs, infinities and so on that `f64` takes.
fn decimal(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_plain.then(|| text.parse().ok())?
}

fn known() -> String {
    Measure::names().join(", ")
}

/// Judges a load test: its objectives, and with them its verdict.
pub fn judge(outcome: &mut Outcome, objectives: &[Objective]) {
    outcome.objectives = objectives.iter().map(|objective| objective.judge(outcome)).collect();
    outcome.has_held = !outcome.has_been_stopped && outcome.breaches().is_empty();
}

#[cfg(test)]
mod tests;
