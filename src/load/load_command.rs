//! Runs `danmakud load`: one test, a search for the capacity, or a comparison of two reports.

use std::path::Path;
use std::sync::Arc;

use super::capacity::{self, CapacityConfig};
use super::engine::{self, LoadError, Run};
use super::live::StderrLive;
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
        println!("{}", compare::compare(&outcome::read(before)?, &outcome::read(after)?));
        return Ok(true);
    }
    let order = args.order()?;
    if let Some(folder) = &order.report {
        // Before the test, which may take long.
        let failed = |source| CommandError::Folder { folder: folder.clone(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let outcome = match order.find_capacity {
        Some(what) => find_capacity(&order, what, stop).await?,
        None => {
            let (outcome, has_been_stopped) = run(&Arc::new(order.plan.clone()), &order, stop).await?;
            if has_been_stopped {
                eprintln!("danmakud: ended early by a signal");
            }
            Some(outcome)
        }
    };
    let Some(outcome) = outcome else { return Ok(false) };
    println!("{}", table::summary(&outcome));
    if let Some(folder) = &order.report {
        write(folder, &outcome)?;
    }
    Ok(outcome.has_held)
}

/// One test, judged.
async fn run(plan: &Arc<Plan>, order: &Order, stop: &Shutdown) -> Result<(Outcome, bool), LoadError> {
    let Run { mut outcome, hints, has_been_stopped } = engine::run(plan, stop, &mut StderrLive::new()).await?;
    outcome.command = command(std::env::args());
    objective::judge(&mut outcome, &order.objectives);
    for hint in hints {
        eprintln!("danmakud: {hint}");
    }
    Ok((outcome, has_been_stopped))
}

/// The test at the highest load that held; none if none did.
async fn find_capacity(order: &Order, what: Scaled, stop: &Shutdown) -> Result<Option<Outcome>, CommandError> {
    let config = CapacityConfig::default();
    let found = capacity::find(&config, async |scale| {
        let plan = Arc::new(order.plan.scaled(scale, what)?);
        let (viewers, rate) = (plan.seating.viewers(), plan.mean_rate());
        eprintln!("danmakud: {viewers} viewers, {rate:.1} comments/s …");
        let (outcome, has_been_stopped) = run(&plan, order, stop).await?;
        if has_been_stopped {
            return Err(CommandError::Stopped);
        }
        let verdict = if outcome.has_held { "held".to_owned() } else { outcome.broken().join("; ") };
        eprintln!("danmakud: {viewers} viewers, {rate:.1} comments/s: {verdict}");
        Ok(outcome)
    });
    let found = found.await?;
    println!("{found}\n");
    Ok(found.into_outcome())
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
    let path = folder.join("report.html");
    std::fs::write(&path, page::render(outcome)).map_err(|source| FileError::Write { path, source })
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
