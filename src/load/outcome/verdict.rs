//! Whether it held, and if not, why.

use std::fmt;

use super::counts::NOBODY_TO_SEND;
use super::{Fault, Outcome};
use crate::load::units::{self, coded, count};

/// Comments that may be expected of a plan before none at all is no chance any more: of five none comes by chance once in 150.
const EXPECTED: f64 = 5.0;

/// Something for which a test has not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Nobody was connected at all.
    Nobody,
    /// Viewers received something wrong.
    Fault(Fault, u64),
    /// Something that no run may show, unless an objective gives it another limit; in words.
    Trouble(String),
    /// An objective was missed.
    Objective {
        /// The objective, as it was asked.
        objective: String,
        /// What was measured.
        measured: String,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("nothing was connected"),
            Self::Fault(fault, times) => write!(f, "{} {}", count(*times), fault.name()),
            Self::Trouble(told) => f.write_str(told),
            Self::Objective { objective, measured } => match &**measured {
                "not measured" => write!(f, "{}: not measured", units::plain(objective)),
                measured => write!(f, "{}: measured {}", units::plain(objective), units::plain(measured)),
            },
        }
    }
}

impl Outcome {
    /// Why the test has not held, the worst first; nothing if it has. Needs the objectives judged.
    ///
    /// Any fault breaks it, whatever its speed, and so does what a server that is not there, full or refusing leaves behind: a
    /// verdict over what arrived alone would hold where nothing did.
    #[must_use]
    pub fn breaches(&self) -> Vec<Breach> {
        let nobody = (self.counts.connected == 0).then_some(Breach::Nobody);
        let faults = self.faults.happened().map(|(fault, count)| Breach::Fault(fault, count));
        let troubles = self.absences().chain(self.errors()).chain(self.refusals()).chain(self.ledger());
        let missed = self.objectives.iter().filter(|judged| !judged.is_held);
        let missed = missed
            .map(|judged| Breach::Objective { objective: judged.objective.clone(), measured: judged.measured.clone() });
        nobody.into_iter().chain(faults).chain(troubles.map(Breach::Trouble)).chain(missed).collect()
    }

    /// [`Outcome::breaches`] in words.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        self.breaches().iter().map(Breach::to_string).collect()
    }

    /// Whether an objective of this name says how much is too much.
    fn has_limit(&self, name: &str) -> bool {
        let is_named = |text: &str| text.split_once('=').is_some_and(|(own, _)| own.trim() == name);
        self.objectives.iter().any(|judged| is_named(&judged.objective))
    }

    /// What was to be done and was not at all.
    fn absences(&self) -> impl Iterator<Item = String> + use<> {
        let (counts, load) = (&self.counts, &self.summary);
        let is_planned = counts.scheduled > 0 || load.rate * load.duration_secs >= EXPECTED;
        let unsent = (is_planned && counts.sent == 0).then(|| "nothing was sent".to_owned());
        let undelivered = (counts.sent > 0 && counts.deliveries == 0).then(|| "nothing was delivered".to_owned());
        unsent.into_iter().chain(undelivered)
    }

    /// What an objective about errors would be about.
    fn errors(&self) -> impl Iterator<Item = String> + use<> {
        let (counts, is_free) = (&self.counts, self.has_limit("errors"));
        let nobody = counts.errors.get(NOBODY_TO_SEND).copied().unwrap_or(0);
        let mut kinds = counts.errors.clone();
        kinds.remove(NOBODY_TO_SEND);
        let kinds_told = coded(&kinds);
        let told = [
            (counts.never_came, "viewers never came".to_owned()),
            (counts.failed_connects(), "connections failed".to_owned()),
            (nobody, "comments could not be sent, for nobody was connected".to_owned()),
            (kinds.values().sum(), format!("errors ({kinds_told})")),
            (counts.unanswered, "comments unanswered".to_owned()),
        ];
        told.into_iter().filter(move |(n, _)| *n > 0 && !is_free).map(|(n, what)| format!("{} {what}", count(n)))
    }

    fn refusals(&self) -> impl Iterator<Item = String> + use<> {
        let refused = self.counts.refusals();
        let told = (refused > 0 && !self.has_limit("refused"))
            .then(|| format!("{} comments refused ({})", count(refused), coded(&self.counts.refused)));
        told.into_iter()
    }

    fn ledger(&self) -> impl Iterator<Item = String> + use<> {
        let server = self.server.as_ref();
        let is_off = server.is_some_and(|server| server.ledger_balances == Some(false));
        let is_off = is_off.then(|| "the server's ledger does not balance".to_owned());
        let not_stored = server.map_or(0, |server| server.not_stored);
        let not_stored = (not_stored > 0).then(|| format!("{} comments accepted and not stored", count(not_stored)));
        is_off.into_iter().chain(not_stored)
    }
}
