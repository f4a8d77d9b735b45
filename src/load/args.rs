//! The command line of `danmakud replay`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::client::Target;
use super::progress::StderrProgress;
use super::replay::{self, ReplayConfig, ReplayError};
use super::report::Report;
use crate::model::{AckLevel, RoomId};
use crate::shutdown::Shutdown;

/// Replays a recorded stream against a server and reports what became of each comment.
///
/// Comments are sent at their recorded times, whether or not the ones before were answered. The first comment goes at
/// once, unless --from-ms says where the replay begins. Many senders share one connection, as every connection
/// receives the whole room; a limit on how fast one user may send meets them together, so loosen it on the server.
/// A lost connection is opened again, and what was not answered is sent once more under the same nonce. The exit code
/// is 0 when everything was sent (unless the replay was stopped) and answered (a refusal is an answer), else 1.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The recorded stream: .csv (t_ms,user,text,chars,utf8_bytes,mode,size,color) or .jsonl/.ndjson
    /// ({"tMs" or "ts", "user", "text", "mode", "size", "color"}).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The room to send to.
    #[arg(long, value_name = "ROOM", value_parser = RoomId::parse)]
    pub room: RoomId,

    /// How many times faster than recorded.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    pub speed: f64,

    /// The server's address.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Target::parse)]
    pub target: Target,

    /// How many connections share the senders, by user number modulo connections.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = parse_connections)]
    pub connections: usize,

    /// Which acknowledgement to ask for: accepted or stored.
    #[arg(long, value_name = "LEVEL", default_value = "stored", value_parser = parse_ack)]
    pub ack: AckLevel,

    /// Begin at this recorded time, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub from_ms: Option<u64>,

    /// End before this recorded time, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub until_ms: Option<u64>,

    /// Send what was refused as rate_limited, busy or going_away again, after the wait that the server names.
    #[arg(long)]
    pub retry: bool,

    /// How many seconds to try to reconnect, and to wait for answers, before giving up.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = parse_patience)]
    pub patience: u64,
}

impl From<ReplayArgs> for ReplayConfig {
    fn from(args: ReplayArgs) -> Self {
        Self {
            file: args.file,
            target: args.target,
            room: args.room,
            speed: args.speed,
            connections: args.connections,
            ack: args.ack,
            from: args.from_ms.map(Duration::from_millis),
            until: args.until_ms.map(Duration::from_millis),
            is_retrying: args.retry,
            patience: Duration::from_secs(args.patience),
        }
    }
}

/// Runs `danmakud replay`: progress on stderr, the report on stdout. `stop` ends the sending; the report follows
/// once the answers are in or its deadline has passed. The exit code is 0 when [`Report::is_clean`], else 1.
///
/// # Errors
/// [`ReplayError`], one line to show, when the replay could not begin.
pub async fn replay_command(args: ReplayArgs, stop: &Shutdown) -> Result<Report, ReplayError> {
    let report = replay::run(args.into(), stop, StderrProgress::default()).await?;
    println!("{report}");
    Ok(report)
}

fn parse_speed(raw: &str) -> Result<f64, String> {
    match raw.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err("must be a number above 0".to_owned()),
    }
}

fn parse_connections(raw: &str) -> Result<usize, String> {
    match raw.parse::<usize>() {
        Ok(count @ 1..=10_000) => Ok(count),
        _ => Err("must be 1 to 10000".to_owned()),
    }
}

fn parse_patience(raw: &str) -> Result<u64, String> {
    // A day. Beyond some centuries the clock itself could not hold the time when patience ends.
    match raw.parse::<u64>() {
        Ok(seconds @ 1..=86_400) => Ok(seconds),
        _ => Err("must be 1 to 86400".to_owned()),
    }
}

fn parse_ack(raw: &str) -> Result<AckLevel, String> {
    match raw {
        "accepted" => Ok(AckLevel::Accepted),
        "stored" => Ok(AckLevel::Stored),
        _ => Err("must be accepted or stored".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        replay: ReplayArgs,
    }

    fn parse(line: &str) -> Result<ReplayConfig, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(cli.replay.into())
    }

    #[test]
    fn flags_become_the_configuration() {
        let config = parse("replay t.csv --room r1").unwrap();
        assert_eq!((config.speed, config.connections, config.ack), (1.0, 16, AckLevel::Stored));
        let config = parse("replay t.csv --room r1 --speed 2.5 --ack accepted --from-ms 60000 --patience 5").unwrap();
        assert_eq!((config.speed, config.ack, config.from), (2.5, AckLevel::Accepted, Some(Duration::from_secs(60))));
    }

    #[test]
    fn bad_flags_are_told_what_would_be_right() {
        for (line, says) in [
            ("t.csv", "--room"),
            ("t.csv --room a/b", "a room id is 1 to 64"),
            ("t.csv --room r --speed 0", "must be a number above 0"),
            ("t.csv --room r --speed nan", "must be a number above 0"),
            ("t.csv --room r --connections 0", "must be 1 to 10000"),
            ("t.csv --room r --patience 18446744073709551615", "must be 1 to 86400"),
            ("t.csv --room r --patience 0", "must be 1 to 86400"),
            ("t.csv --room r --ack kept", "must be accepted or stored"),
            ("t.csv --room r --target https://h", "plain http://"),
        ] {
            let error = parse(&format!("replay {line}")).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
