//! Whether it held, and if not, why.

use super::Outcome;
use crate::load::units;

impl Outcome {
    /// Why the test has not held, the worst first; nothing if it has. Needs the objectives judged.
    ///
    /// Any fault breaks it, whatever its speed, and so does having reached nobody: what carried nothing has shown
    /// nothing.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let faults = self.faults.happened().map(|(fault, count)| format!("{} {}", units::count(count), fault.name()));
        let missed = self.objectives.iter().filter(|judged| !judged.is_held);
        let missed = missed.map(|judged| match &*judged.measured {
            "not measured" => format!("{}: not measured", units::plain(&judged.objective)),
            measured => format!("{}: measured {}", units::plain(&judged.objective), units::plain(measured)),
        });
        let nobody = (self.counts.connected == 0).then(|| "nothing was connected".to_owned());
        nobody.into_iter().chain(faults).chain(missed).collect()
    }
}
