//! danmakud: reads the command line and the configuration, then serves, checks, replays, loads, makes a token or asks for
//! health.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

use std::process::ExitCode;
use std::time::Duration;

use danmakud::cli::{self, Command, FAILED, USAGE};
use danmakud::config::Config;
use danmakud::{serve, telemetry};

/// How long blocking calls that are still under way may take when all else has ended.
const LAST_CALLS: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let outcome = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => match args.load() {
            Ok(config) => run_server(config),
            Err(error) => return refuse(&error),
        },
        Command::Check(args) => match args.load() {
            Ok(config) => {
                println!("{config}\nthe configuration is right");
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => return refuse(&error),
        },
        Command::Token(args) => match args.server.load() {
            Ok(config) => serve::token(&config, &args.grant()),
            Err(error) => return refuse(&error),
        },
        Command::Replay(args) => runtime().and_then(|runtime| runtime.block_on(serve::replay(args))),
        Command::Load(args) => runtime().and_then(|runtime| runtime.block_on(serve::load(*args))),
        Command::Health(args) => match args.server.load() {
            Ok(config) => runtime().and_then(|runtime| runtime.block_on(serve::health(config.listen, args.question()))),
            Err(error) => return refuse(&error),
        },
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("danmakud: {error:#}");
        ExitCode::from(FAILED)
    })
}

fn run_server(config: Config) -> anyhow::Result<ExitCode> {
    telemetry::start(&config.log);
    let runtime = runtime()?;
    let outcome = runtime.block_on(serve::serve(config));
    // Dropping it would wait without end for a call into a disk or a resolver that hangs.
    runtime.shutdown_timeout(LAST_CALLS);
    outcome
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

fn refuse(error: &danmakud::config::ConfigError) -> ExitCode {
    eprintln!("danmakud: {error}");
    ExitCode::from(USAGE)
}
