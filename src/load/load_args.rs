//! The command line of `danmakud load`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use thiserror::Error;

use super::client::{ClientError, Target};
use super::engine::LoadError;
use super::objective::{self, Objective, ObjectiveError};
use super::outcome::FileError;
use super::plan::{Asking, Knobs, Plan, PlanError, Scaled};

/// Where a server is when nothing else is said.
const HOME: &str = "http://127.0.0.1:8080";

/// Loads running servers as a peak would, checks all that every viewer gets, and gives a verdict.
///
/// Comments are sent at their scheduled times, whether or not the ones before were answered, and all times count from
/// there. Every comment of every viewer is checked: none lost, doubled, out of order, in the wrong room or damaged, and no
/// gap untold. A run with any of these fails, whatever its speed. Senders are viewers of their rooms, each a guest of its
/// own. The exit code is 0 when nothing was wrong and all objectives held, 1 when not, and 64 for what cannot be meant.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// A server's address; several are loaded in turn [default: http://127.0.0.1:8080].
    #[arg(long, value_name = "URL")]
    pub target: Vec<String>,

    /// A shipped profile (quiet-evening, evening, peak-room, many-rooms, slow-readers, reconnect-storm, misbehaving) or a
    /// file of such; flags go before it.
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,

    /// The knobs, which a profile may have as well.
    #[command(flatten)]
    pub knobs: Knobs,

    /// A token to send as ?token=; several are used in turn.
    #[arg(long, value_name = "TOKEN")]
    pub token: Vec<String>,

    /// A file of tokens, one a line.
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,

    /// An address of this machine to connect from, each good for some 28,000 connections; several are used in turn. On
    /// loopback as many as are needed are used by themselves.
    #[arg(long, value_name = "ADDR")]
    pub source: Vec<String>,

    /// What must hold besides, such as p99=200ms,lost=0,errors=0.1%.
    #[arg(long, value_name = "OBJECTIVES")]
    pub objective: Vec<String>,

    /// A folder for report.json and report.html.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,

    /// Raise the load step by step until an objective breaks, and say the highest that held. What is raised: rate (the
    /// default), viewers or both.
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "rate")]
    pub find_capacity: Option<Scaled>,

    /// Say the difference of two reports, and do nothing else.
    #[arg(long, value_names = ["A.json", "B.json"], num_args = 2, exclusive = true)]
    pub compare: Vec<PathBuf>,
}

/// Why there is no verdict: one line to show.
#[derive(Debug, Error)]
pub enum CommandError {
    /// The plan is none.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An objective is none.
    #[error("--objective: {0}")]
    Objective(ObjectiveError),
    /// There is nothing to break.
    #[error("--find-capacity: say with --objective when the load is too much, as p99=200ms")]
    NoObjective,
    /// An address is none.
    #[error("--target: {}", .0.with_cause())]
    Target(ClientError),
    /// An address has what is nobody else's business; it is not told, for it may be a secret.
    #[error("--target: an address has neither query nor user; give a token with --token")]
    Secret,
    /// An address is given twice.
    #[error("--target: {target} is given twice")]
    Twice {
        /// Which.
        target: String,
    },
    /// An address to connect from is none.
    #[error("--source: {given:?} is not an address of this machine such as 127.0.0.2")]
    Source {
        /// As it was given.
        given: String,
    },
    /// The tokens cannot be read.
    #[error("--tokens: {} cannot be read", file.display())]
    Tokens {
        /// Which file.
        file: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// There is no folder for the report.
    #[error("--report: {} is no folder that can be written to", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The report cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A signal came before anything could be said.
    #[error("ended by a signal before the capacity was found")]
    Stopped,
    /// The test could not be run.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl CommandError {
    /// Whether the command line is at fault, rather than a server or this machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Load(_) | Self::File(_) | Self::Folder { .. } | Self::Stopped)
    }
}

/// A command line that can be meant.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) plan: Plan,
    pub(super) objectives: Vec<Objective>,
    pub(super) report: Option<PathBuf>,
    pub(super) find_capacity: Option<Scaled>,
}

impl LoadArgs {
    /// Judges what was typed.
    ///
    /// # Errors
    /// [`CommandError`], one for which [`CommandError::is_usage`].
    pub(super) fn order(self) -> Result<Order, CommandError> {
        let objectives = match self.objective.join(",") {
            none if self.objective.is_empty() && none.is_empty() => Vec::new(),
            some => objective::parse(&some).map_err(CommandError::Objective)?,
        };
        if self.find_capacity.is_some() && objectives.is_empty() {
            return Err(CommandError::NoObjective);
        }
        let home = [HOME.to_owned()];
        let targets = if self.target.is_empty() { &home[..] } else { &self.target };
        if targets.iter().any(|target| target.contains(['?', '@'])) {
            return Err(CommandError::Secret);
        }
        let targets = distinct(targets)?;
        let source = |given: &String| given.parse().map_err(|_| CommandError::Source { given: given.clone() });
        let sources: Result<Vec<IpAddr>, _> = self.source.iter().map(source).collect();
        let mut tokens = self.token;
        if let Some(file) = self.tokens {
            let unreadable = |source| CommandError::Tokens { file: file.clone(), source };
            let text = std::fs::read_to_string(&file).map_err(unreadable)?;
            tokens.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        }
        let asking = Asking { profile: self.profile, flags: self.knobs, targets, tokens, sources: sources? };
        let (report, find_capacity) = (self.report, self.find_capacity);
        Ok(Order { plan: Plan::new(asking)?, objectives, report, find_capacity })
    }
}

/// The servers at these addresses. One that is there twice would be asked twice what it used.
fn distinct(addresses: &[String]) -> Result<Vec<Target>, CommandError> {
    let mut targets: Vec<Target> = Vec::new();
    for address in addresses {
        let target = Target::parse(address).map_err(CommandError::Target)?;
        let is_same = |other: &Target| (other.socket(), other.path("")) == (target.socket(), target.path(""));
        if targets.iter().any(is_same) {
            return Err(CommandError::Twice { target: address.clone() });
        }
        targets.push(target);
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn order(line: &str) -> Result<Order, CommandError> {
        let words = std::iter::once("load").chain(line.split(' ').filter(|word| !word.is_empty()));
        Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).load.order()
    }

    #[test]
    fn every_knob_is_a_flag() {
        let command = <Cli as clap::CommandFactory>::command();
        let flags: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        assert!(Knobs::names().len() > 30);
        for knob in Knobs::names() {
            assert!(flags.contains(&knob.replace('_', "-").as_str()), "{knob}");
        }
    }

    #[test]
    fn flags_become_an_order() {
        let none = order("").unwrap();
        assert_eq!((none.plan.targets[0].shown(), none.plan.seating.viewers()), (HOME, 100));
        let all = "--target http://a:1 --target http://b:2 --token x --token y --source 127.0.0.2 --viewers 7 \
                   --objective p99=1s --objective lost=0 --report r --find-capacity=viewers";
        let all = order(all).unwrap();
        assert_eq!((all.plan.targets.len(), all.plan.tokens.len(), all.plan.sources.len()), (2, 2, 1));
        assert_eq!((all.objectives.len(), all.find_capacity, all.report.is_some()), (2, Some(Scaled::Viewers), true));
        assert_eq!(order("--find-capacity --objective p99=1s").unwrap().find_capacity, Some(Scaled::Rate));
    }

    #[test]
    fn what_cannot_be_meant_is_usage() {
        for (line, says) in [
            ("--find-capacity", "--find-capacity: say with --objective"),
            ("--target nowhere", "--target: \"nowhere\" is not an address of a server"),
            ("--objective fast", "--objective: objective \"fast\" names no limit"),
            ("--objective p99=1s, --target http://h", "--objective: an objective is missing"),
            ("--target http://h:1 --target http://h:1/", "--target: http://h:1/ is given twice"),
            ("--target http://h/?token=SECRET", "--target: an address has neither query nor user"),
            ("--target http://me:SECRET@h", "--target: an address has neither query nor user"),
            ("--target SECRET@h", "--target: an address has neither query nor user"),
        ] {
            let error = order(line).unwrap_err();
            let chain = format!("{:#}", anyhow::Error::from(order(line).unwrap_err()));
            assert_eq!(chain, error.to_string(), "{line}: nothing is said twice");
            assert!(!chain.contains("SECRET"), "{chain}");
            assert!(error.is_usage() && error.to_string().starts_with(says), "{line}: {error}");
        }
    }
}
