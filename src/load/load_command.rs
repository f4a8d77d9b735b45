//! Runs `danmakud load`: one test, a search for the capacity, or a comparison of two reports.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use super::capacity::{self, CapacityConfig};
use super::engine::{self, LoadError, Run};
use super::live::{StderrLive, say};
use super::load_args::{CommandError, LoadArgs, Order};
use super::objective;
use super::outcome::{self, FileError, Outcome};
use super::plan::{Plan, Scaled};
use super::{compare, page, table};
use crate::shutdown::Shutdown;

/// Runs `danmakud load`: progress on stderr, the result on stdout. `stop` ends a test early; what was measured until then is
/// reported. Gives whether nothing was wrong and all objectives held.
///
/// # Errors
/// [`CommandError`], one line to show with its causes.
pub async fn load_command(args: LoadArgs, stop: &Shutdown) -> Result<bool, CommandError> {
    if let [before, after] = args.compare.as_slice() {
        print(&compare::compare(&outcome::read(before)?, &outcome::read(after)?));
        return Ok(true);
    }
    let order = args.order()?;
    if let Some(folder) = &order.report {
        // Before the test, which may take long.
        let failed = |source| CommandError::Folder { folder: folder.clone(), source };
        outcome::prepare(folder).map_err(failed)?;
    }
    let (found, outcome) = match order.find_capacity {
        Some(what) => find_capacity(&order, what, stop).await?,
        None => (String::new(), Some(run(&Arc::new(order.plan.clone()), &order, stop).await?)),
    };
    // Before anything is printed: whoever reads may be gone.
    let written = match (&order.report, &outcome) {
        (Some(folder), Some(outcome)) => write(folder, outcome),
        _ => Ok(()),
    };
    let summary = outcome.as_ref().map(table::summary).unwrap_or_default();
    print(&format!("{found}{summary}"));
    written?;
    Ok(outcome.is_some_and(|outcome| outcome.has_held))
}

/// Prints to stdout. Who closed it does not want to know, and the exit code has the verdict.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _closed = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// One test, judged.
async fn run(plan: &Arc<Plan>, order: &Order, stop: &Shutdown) -> Result<Outcome, LoadError> {
    let Run { mut outcome, hints } = engine::run(plan, stop, &mut StderrLive::new()).await?;
    outcome.command = command(std::env::args());
    objective::judge(&mut outcome, &order.objectives);
    for hint in hints {
        say(&format!("danmakud: {hint}"));
    }
    Ok(outcome)
}

/// What was found, in words, and the test at the highest load that held, or else at the lowest that broke.
async fn find_capacity(
    order: &Order,
    what: Scaled,
    stop: &Shutdown,
) -> Result<(String, Option<Outcome>), CommandError> {
    let config = CapacityConfig::default();
    let found = capacity::find(&config, async |scale| {
        let plan = Arc::new(order.plan.scaled(scale, what)?);
        let (viewers, rate) = (plan.seating.viewers(), plan.mean_rate());
        say(&format!("danmakud: {viewers} viewers, {rate:.1} comments/s …"));
        let outcome = run(&plan, order, stop).await?;
        if outcome.has_been_stopped {
            return Err(CommandError::Stopped);
        }
        let verdict = if outcome.has_held { "held".to_owned() } else { outcome.broken().join("; ") };
        say(&format!("danmakud: {viewers} viewers, {rate:.1} comments/s: {verdict}"));
        Ok(outcome)
    });
    let found = found.await?;
    Ok((format!("{found}\n\n"), found.into_outcome()))
}

/// The words of the command line, without tokens.
fn command(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut is_secret = false;
    let mask = |word: String| match (std::mem::replace(&mut is_secret, word == "--token"), word) {
        (true, _) => "***".to_owned(),
        (false, word) if word.starts_with("--token=") => "--token=***".to_owned(),
        (false, word) => word,
    };
    words.map(mask).collect()
}

fn write(folder: &Path, outcome: &Outcome) -> Result<(), FileError> {
    outcome::write(&folder.join("report.json"), outcome)?;
    outcome::replace(&folder.join("report.html"), &page::render(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_told() {
        let words = ["danmakud", "load", "--token", "secret", "--token=secret", "--rate", "3"].map(str::to_owned);
        assert_eq!(command(words.into_iter()).join(" "), "danmakud load --token *** --token=*** --rate 3");
    }
}
