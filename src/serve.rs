//! The commands: serving until a signal, making a token, sending a recording to a server, loading some, asking one for its
//! health.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::app::{App, Farewell};
use crate::auth::{AuthConfig, Grant, issue};
use crate::cli::{FAILED, OK, Question, USAGE};
use crate::clock::Clock;
use crate::config::Config;
use crate::load::{LoadArgs, ReplayArgs, load_command, replay_command};
use crate::metrics::Metrics;
use crate::model::{Role, RoomId};
use crate::server;
use crate::shutdown::Shutdown;

/// The room of the link that the first start prints: the one that the page shows when no room is named.
const FIRST_ROOM: &str = "lobby";

/// How long that link is good for; `danmakud token` makes more.
const FIRST_TTL: Duration = Duration::from_secs(24 * 3600);

/// How long a replay that was stopped waits for the answers to what it has sent.
const ANSWERS: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT, then drains. The last line on standard output is the ledger.
///
/// # Errors
/// When the server cannot start.
pub async fn serve(config: Config) -> Result<ExitCode> {
    let (deadline, auth) = (config.shutdown_deadline, config.auth.clone());
    server::raise_limit(config.server.gate.max_connections);
    let (shutdown, metrics) = (Shutdown::default(), Arc::new(Metrics::default()));
    let account = metrics.account.clone();
    // Before the start, which may have to wait for others.
    let announce = {
        let shutdown = shutdown.clone();
        move || shutdown.announce(deadline)
    };
    on_signal(shutdown.clone(), announce, move || {
        let ledger = account.read();
        eprintln!("danmakud: a second signal; {} accepted comments are not stored", ledger.unsettled());
        say(&format!("ledger: {ledger}"));
    })?;
    let app = tokio::select! {
        biased; // a stop goes before the start
        _ = shutdown.announced() => return Ok(say_farewell(Farewell::before_serving(&metrics))),
        app = App::start(config, Clock::system(), shutdown.clone(), Arc::clone(&metrics)) => app?,
    };
    say(&format!("listening on http://{}", app.address));
    if app.has_new_secret {
        say(&format!("host's page: {}", host_page(&auth, app.address)?));
    }
    Ok(say_farewell(app.drain().await))
}

/// The link to the first host's page, for whom nobody has made a token yet.
fn host_page(auth: &AuthConfig, address: SocketAddr) -> Result<String> {
    let room = RoomId::parse(FIRST_ROOM)?;
    let grant = Grant { uid: None, name: None, role: Role::Host, rooms: vec![room], ttl: FIRST_TTL };
    let token = issue(auth, &Clock::system(), &grant)?;
    // Behind the #, for what stands there browsers send to no server, and no proxy writes it down.
    Ok(format!("http://{}/rooms/{FIRST_ROOM}#token={token}", at_home(address)))
}

/// Prints a token for whom it is asked.
///
/// # Errors
/// When there is no key to make it with.
pub fn token(config: &Config, grant: &Grant) -> Result<ExitCode> {
    let token = issue(&config.auth, &Clock::system(), grant).context("cannot make a token")?;
    println!("{token}");
    Ok(ExitCode::from(OK))
}

/// Tells what was left, the ledger last, and gives the exit code.
fn say_farewell(Farewell { ledger, is_journaled, has_closed_all }: Farewell) -> ExitCode {
    let is_lost = ledger.unsettled() > 0 && !is_journaled;
    if ledger.outbox > 0 {
        eprintln!("danmakud: {} accepted comments wait in the outbox for the next start", ledger.outbox);
    }
    if ledger.unsettled() > 0 && is_journaled {
        eprintln!("danmakud: {} accepted comments wait in the journal for the next start", ledger.unsettled());
    }
    if is_lost {
        eprintln!("danmakud: {} accepted comments were not stored", ledger.unsettled());
    }
    say(&format!("ledger: {ledger}"));
    ExitCode::from(if is_lost || !has_closed_all { FAILED } else { OK })
}

/// Has the shutdown announced or begun at the first signal; the second says its last words and ends the process at once.
fn on_signal(
    shutdown: Shutdown,
    stop: impl Fn() + Send + 'static,
    last_words: impl Fn() + Send + 'static,
) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            if shutdown.is_announced() {
                last_words();
                std::process::exit(FAILED.into());
            }
            // Timers need the runtime.
            let _guard = runtime.enter();
            stop();
        }
    })?;
    Ok(())
}

/// Sends a recorded stream to a running server. A first Ctrl-C ends the sending and waits for the answers.
///
/// # Errors
/// When it could not begin.
pub async fn replay(args: ReplayArgs) -> Result<ExitCode> {
    let stop = stop_by_signal()?;
    let report = replay_command(args, &stop).await?;
    Ok(ExitCode::from(if report.is_clean() { OK } else { FAILED }))
}

/// Loads running servers and gives the verdict. A first Ctrl-C ends the test early, with a report.
///
/// # Errors
/// When it could not be run.
pub async fn load(args: LoadArgs) -> Result<ExitCode> {
    let stop = stop_by_signal()?;
    match load_command(args, &stop).await {
        Ok(has_held) => Ok(ExitCode::from(if has_held { OK } else { FAILED })),
        Err(error) if error.is_usage() => {
            eprintln!("danmakud: {:#}", anyhow::Error::from(error));
            Ok(ExitCode::from(USAGE))
        }
        Err(error) => Err(error.into()),
    }
}

/// A stop that begins with the first signal; the second ends the process.
fn stop_by_signal() -> Result<Shutdown> {
    let stop = Shutdown::default();
    let begin = {
        let stop = stop.clone();
        move || stop.begin(ANSWERS)
    };
    on_signal(stop.clone(), begin, || eprintln!("danmakud: a second signal, no report"))?;
    Ok(stop)
}

/// Where a server that listens everywhere is asked from the same machine.
fn at_home(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
    } else {
        address
    }
}

/// Prints a line at once, also into a pipe. Whoever closed the pipe does not want to know.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _best_effort = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Asks the server at `address` whether it is well.
///
/// # Errors
/// When it is not, or does not answer within three seconds.
pub async fn health(address: SocketAddr, question: Question) -> Result<ExitCode> {
    let (path, wanted) = match question {
        Question::Lives => ("/healthz", "alive"),
        Question::IsReady => ("/readyz", "ready"),
    };
    let address = at_home(address);
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(65_536).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(3), ask).await;
    let answer = answer.unwrap_or_else(|_| Err(std::io::Error::other("no answer within 3 s")));
    let answer = answer.with_context(|| format!("cannot ask {address}"))?;
    if answer.starts_with("HTTP/1.1 200") {
        return Ok(ExitCode::from(OK));
    }
    let body = answer.split_once("\r\n\r\n").map_or("no answer", |(_, body)| body);
    bail!("{address} is not {wanted}: {body}")
}
