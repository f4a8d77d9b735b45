//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::auth::Grant;
use crate::config::{Config, ConfigError, Layers};
use crate::load::{LoadArgs, ReplayArgs};
use crate::model::{Role, RoomId};

/// All is well.
pub const OK: u8 = 0;
/// Something failed or was lost.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong (EX_USAGE of sysexits.h).
pub const USAGE: u8 = 64;

/// A self-hosted server for live-stream danmaku.
#[derive(Debug, Parser)]
#[command(name = "danmakud", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `serve` when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How, when nothing is said.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server (the default).
    Serve(ServeArgs),
    /// Check the configuration, say what it comes to, and do nothing else.
    Check(ServeArgs),
    /// Send a recorded stream to a running server, at its recorded pace.
    Replay(ReplayArgs),
    /// Load running servers as a peak would, check every delivery, and give a verdict.
    Load(Box<LoadArgs>),
    /// Make a token for a host, a moderator, a viewer or an administrator, and print it.
    Token(TokenArgs),
    /// Ask a running server whether it lives, or is ready; for container health checks.
    Health(HealthArgs),
}

/// Where the configuration comes from.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// A TOML file; see config/default.toml for every key.
    #[arg(long, value_name = "FILE", env = "DANMAKUD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where local data goes.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep comments in this MongoDB instead of the data folder.
    #[arg(long, value_name = "URI")]
    pub mongodb: Option<String>,
    /// Join other nodes through this Redis.
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,
}

/// Whom a token is for.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What the server is started with: the token is made with the same keys.
    #[command(flatten)]
    pub server: ServeArgs,
    /// A room that it is for; for several, say it again. Hosts and moderators need one. A viewer's token without any is for
    /// all rooms, and an administrator's always is.
    #[arg(long = "room", value_name = "ROOM", value_parser = RoomId::parse)]
    pub rooms: Vec<RoomId>,
    /// viewer, moderator, host or admin.
    #[arg(long, value_parser = role)]
    pub role: Role,
    /// The id of its bearer [default: made of role and room].
    #[arg(long, value_name = "UID")]
    pub uid: Option<String>,
    /// The name its bearer is shown by [default: as its bearer says].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it is good for, such as 90m, 2h or 7days.
    #[arg(long, value_name = "TIME", default_value = "2h", value_parser = humantime::parse_duration)]
    pub ttl: Duration,
}

fn role(word: &str) -> Result<Role, String> {
    Role::parse(word).ok_or_else(|| format!("one of {}", Role::ALL.map(Role::as_str).join(", ")))
}

impl TokenArgs {
    /// What the token is to give.
    #[must_use]
    pub fn grant(self) -> Grant {
        let Self { rooms, role, uid, name, ttl, .. } = self;
        Grant { uid, name, role, rooms, ttl }
    }
}

/// Which server to ask.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// What it was started with: its address is found as it finds it itself.
    #[command(flatten)]
    pub server: ServeArgs,
    /// Ask whether it should get traffic now, instead of whether it lives. Not for what restarts a server: one that
    /// waits for its store to come back holds comments in memory.
    #[arg(long)]
    pub ready: bool,
}

/// What a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the process lives.
    Lives,
    /// Whether it should get traffic.
    IsReady,
}

impl HealthArgs {
    /// What to ask.
    #[must_use]
    pub fn question(&self) -> Question {
        if self.ready { Question::IsReady } else { Question::Lives }
    }
}

impl ServeArgs {
    /// Reads the file, this process's environment and the flags.
    ///
    /// # Errors
    /// [`ConfigError`]; exit with [`USAGE`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        let data_dir = self.data_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
        let flags = [
            ("listen", "--listen", self.listen.clone()),
            ("data_dir", "--data-dir", data_dir),
            ("mongodb.uri", "--mongodb", self.mongodb.clone()),
            ("redis.url", "--redis", self.redis.clone()),
        ];
        let flags = flags.into_iter().filter_map(|(key, flag, value)| Some((key, flag, value?))).collect();
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        Config::load(&Layers { file: self.config.clone(), environment, flags })
    }
}

/// Reads the command line. A wrong one ends the process with [`USAGE`], a request for help with [`OK`].
///
/// # Errors
/// The exit code to end with; what was wrong has been said.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // Nobody is left to tell when this fails.
        let _best_effort = error.print();
        ExitCode::from(if error.use_stderr() { USAGE } else { OK })
    })
}
