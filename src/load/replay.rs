//! Sends a recorded stream at its recorded times, and finds out what became of each comment.
//!
//! An open model: comments are sent when they are due, whether or not the ones before were answered, as viewers do.
//! The senders share a few connections, user number modulo connections. One socket for each sender would be nearer to
//! life, but every socket receives the whole room: with 1,500 senders the client would measure its own reading. So
//! a rate limit for each user meets all senders of a connection together; loosen it on the server for a replay.
//!
//! Each connection is a good client: it reads while it sends, comes back when it is sent away, resumes from its
//! cursor, and sends what was not answered once more under the same nonce, which makes it one comment to the server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thiserror::Error;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, interval, timeout_at};

use super::client::{ClientError, Dial, Target, Tcp, connect};
use super::connection::{Connection, Shared, Tally, lock};
use super::lane::{Lane, Planned};
use super::report::Report;
use super::trace::{self, Line, TraceError};
use crate::model::{AckLevel, RoomId};
use crate::shutdown::Shutdown;

/// What to replay, and against what.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// The trace.
    pub file: PathBuf,
    /// The server.
    pub target: Target,
    /// The room.
    pub room: RoomId,
    /// How many times faster than recorded; above 0.
    pub speed: f64,
    /// How many connections share the senders; at least 1.
    pub connections: usize,
    /// Which acknowledgement to ask for.
    pub ack: AckLevel,
    /// Leaves out what was recorded earlier; the replay then begins at this time instead of at the first comment's.
    pub from: Option<Duration>,
    /// Leaves out what was recorded at this time or later.
    pub until: Option<Duration>,
    /// Whether refusals that waiting mends are tried again.
    pub is_retrying: bool,
    /// How long to try to reconnect, and to wait for answers, before giving up.
    pub patience: Duration,
}

/// Why a replay did not begin.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The server cannot be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The chosen span has no comments.
    #[error("{} has no comments between --from-ms and --until-ms; it spans {} to {} ms", file.display(), first.as_millis(), last.as_millis())]
    NothingToSend {
        /// The trace.
        file: PathBuf,
        /// Its first comment's time.
        first: Duration,
        /// Its last comment's time.
        last: Duration,
    },
}

/// Is shown how a replay goes.
pub trait Progress {
    /// Called a few times a second, with the counts so far.
    fn show(&mut self, so_far: &Report);
}

/// Replays a trace until all is answered or given up, or until `stop` begins: then nothing more is sent, and answers
/// are awaited until its deadline.
///
/// # Errors
/// [`ReplayError`] when the trace cannot be read or the first connections fail; nothing has been sent then. Later
/// trouble is in the report.
pub async fn run(config: ReplayConfig, stop: &Shutdown, progress: impl Progress) -> Result<Report, ReplayError> {
    let lines = trace::load(&config.file)?;
    play(lines, config, Tcp, stop, progress).await
}

pub(super) async fn play<D: Dial>(
    lines: Vec<Line>,
    config: ReplayConfig,
    dial: D,
    stop: &Shutdown,
    mut progress: impl Progress,
) -> Result<Report, ReplayError> {
    let lanes = plan(lines, &config)?;
    let total: usize = lanes.iter().map(Vec::len).sum();
    let run_id = format!("{:08x}", fastrand::u32(..));
    let stored = (config.ack == AckLevel::Stored).then_some(0);
    let report = Report { total: total as u64, stored, ..Report::default() };
    let shared = Arc::new(Shared { config, dial, run_id, tally: Mutex::new(Tally { report, lateness: Vec::new() }) });

    // All connections stand before the clock starts, so that connecting makes no comment late.
    let mut connections = Vec::new();
    for (index, planned) in lanes.into_iter().enumerate() {
        let guest = shared.guest(index);
        let config = &shared.config;
        let url = config.target.room_url(&config.room, &guest, None);
        connections.push((index, guest, planned, connect(&shared.dial, &config.target, &url).await?));
    }
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    let mut all = Vec::new();
    for (index, guest, planned, socket) in connections {
        let lane = Lane::new(planned, start, shared.config.patience);
        let connection = Arc::new(Connection::new(index, guest, lane, Arc::clone(&shared)));
        all.push(Arc::clone(&connection));
        tasks.spawn(async move { connection.run(socket).await });
    }
    watch(&shared, &all, tasks, stop, &mut progress).await;
    let report = shared.finish(&all, start.elapsed());
    progress.show(&report);
    Ok(report)
}

/// Waits for all connections to be through, showing the progress; passes a stop on to them.
async fn watch<D: Dial>(
    shared: &Shared<D>,
    all: &[Arc<Connection<D>>],
    mut tasks: JoinSet<()>,
    stop: &Shutdown,
    progress: &mut impl Progress,
) {
    let mut tick = interval(Duration::from_millis(200));
    let deadline = loop {
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(ended) => count_failure(shared, ended),
                None => return,
            },
            _ = tick.tick() => progress.show(&lock(&shared.tally).report),
            deadline = stop.begun() => break deadline,
        }
    };
    shared.count(|report| report.is_stopped = true);
    all.iter().for_each(|connection| connection.stop());
    // What is unanswered at the deadline is reported as such; dropping the set ends its tasks.
    let _in_time = timeout_at(deadline, async {
        while let Some(ended) = tasks.join_next().await {
            count_failure(shared, ended);
        }
    })
    .await;
}

/// A connection whose task has failed sends and reads no more: it counts as given up.
fn count_failure<D: Dial>(shared: &Shared<D>, ended: Result<(), JoinError>) {
    if ended.is_err() {
        // What happened has been told on standard error, with its place.
        shared.count(|report| report.given_up.push("a connection has failed in itself".to_owned()));
    }
}

/// Cuts the chosen span out of the trace and deals its comments to the connections.
fn plan(lines: Vec<Line>, config: &ReplayConfig) -> Result<Vec<Vec<Planned>>, ReplayError> {
    let nothing = ReplayError::NothingToSend {
        file: config.file.clone(),
        first: lines.first().map(|line| line.at).unwrap_or_default(),
        last: lines.last().map(|line| line.at).unwrap_or_default(),
    };
    let is_chosen = |line: &Line| {
        config.from.is_none_or(|from| line.at >= from) && config.until.is_none_or(|until| line.at < until)
    };
    let mut chosen = lines.into_iter().filter(is_chosen).peekable();
    let Some(origin) = chosen.peek().map(|first| config.from.unwrap_or(first.at)) else { return Err(nothing) };
    let count = config.connections.max(1);
    let mut lanes = vec![Vec::new(); count];
    for line in chosen {
        let seconds = (line.at - origin).as_secs_f64() / config.speed;
        let due = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
        let lane = usize::try_from(line.user % count as u64).unwrap_or(0);
        if let Some(lane) = lanes.get_mut(lane) {
            lane.push(Planned { due, line });
        }
    }
    // A connection without a sender would only read.
    lanes.retain(|lane| !lane.is_empty());
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::load::fake_server::{FakeServer, FakeSession, no_progress};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn config() -> ReplayConfig {
        ReplayConfig {
            file: "t.csv".into(),
            target: Target::parse("http://fake").unwrap(),
            room: RoomId::parse("r1").unwrap(),
            speed: 1.0,
            connections: 1,
            ack: AckLevel::Stored,
            from: None,
            until: None,
            is_retrying: false,
            patience: Duration::from_secs(30),
        }
    }

    fn lines(times: &[u64]) -> Vec<Line> {
        let line = |(user, &at): (usize, &u64)| Line {
            at: ms(at),
            user: user as u64,
            text: format!("text {user}"),
            mode: Some(1),
            size: None,
            color: None,
        };
        times.iter().enumerate().map(line).collect()
    }

    /// Replays `times` against a server whose sessions behave as `serve` says.
    async fn replay<F>(
        times: &[u64],
        config: ReplayConfig,
        serve: impl Fn(usize, FakeSession) -> F + Send + 'static,
    ) -> Report
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let dial = FakeServer::start(serve);
        play(lines(times), config, dial, &Shutdown::default(), no_progress()).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn comments_are_sent_at_their_times_by_the_speed() {
        let (told, mut times) = tokio::sync::mpsc::unbounded_channel();
        let config = ReplayConfig { speed: 2.0, from: Some(ms(1_000)), until: Some(ms(9_000)), ..config() };
        let start = Instant::now();
        let report = replay(&[500, 2_000, 2_000, 5_000, 9_000], config, move |_, mut session| {
            let told = told.clone();
            async move {
                while let Some(send) = session.next_send().await {
                    told.send((send.text.clone(), start.elapsed().as_millis())).unwrap();
                    session.ack(&send, "stored").await;
                }
            }
        });
        let report = report.await;
        let mut seen = Vec::new();
        while let Ok((text, at)) = times.try_recv() {
            seen.push((text, at / 10 * 10));
        }
        assert_eq!(seen, [("text 1".into(), 500), ("text 2".into(), 500), ("text 3".into(), 2_000)]);
        assert_eq!((report.total, report.sent, report.accepted, report.stored), (3, 3, 3, Some(3)));
        assert!(report.is_clean() && report.lateness.max < ms(5), "{report:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn stored_counts_only_what_the_store_acknowledged() {
        let report = replay(&[0, 1, 2], config(), |_, mut session| async move {
            let mut levels = ["accepted", "stored", "accepted"].into_iter();
            while let Some(send) = session.next_send().await {
                assert_eq!(send.ack, "stored");
                session.ack(&send, levels.next().unwrap()).await;
            }
        });
        let report = report.await;
        assert_eq!((report.accepted, report.stored, report.unanswered), (3, Some(1), 0));
    }

    async fn refuse_once(_: usize, mut session: FakeSession) {
        let mut refused = std::collections::HashSet::new();
        while let Some(send) = session.next_send().await {
            let code = match send.text.as_str() {
                "text 0" => Some("rate_limited"),
                "text 1" => Some("text_blank"),
                _ => None,
            };
            match code {
                Some(code) if refused.insert(send.nonce.clone()) => session.refuse(&send, code, 700).await,
                _ => session.ack(&send, "stored").await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_counted_by_code() {
        let report = replay(&[0, 1, 2], config(), refuse_once).await;
        assert_eq!(
            report.refused.into_iter().collect::<Vec<_>>(),
            [("rate_limited".into(), 1), ("text_blank".into(), 1)]
        );
        assert_eq!((report.sent, report.accepted, report.unanswered, report.retried), (3, 1, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn with_retry_what_waiting_mends_is_sent_again_after_the_wait() {
        let start = Instant::now();
        let report = replay(&[0, 1, 2], ReplayConfig { is_retrying: true, ..config() }, refuse_once).await;
        assert!(start.elapsed() >= ms(700), "{:?}", start.elapsed());
        assert_eq!((report.sent, report.accepted, report.retried, report.refusals()), (3, 2, 1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn after_bye_it_comes_back_in_time_and_sends_the_unanswered_under_the_same_nonce() {
        let (told, mut nonces) = tokio::sync::mpsc::unbounded_channel();
        let start = Instant::now();
        let report = replay(&[0, 1, 2], config(), move |number, mut session| {
            let told = told.clone();
            async move {
                if number == 0 {
                    session.say(r#"{"type":"hello","cursor":"c7"}"#).await;
                    for _ in 0..3 {
                        let send = session.next_send().await.unwrap();
                        if send.text == "text 1" {
                            session.ack(&send, "stored").await;
                        }
                        told.send(send.nonce).unwrap();
                    }
                    return session.say(r#"{"type":"bye","code":"going_away","reconnectAfterMs":1500}"#).await;
                }
                assert!(session.path.ends_with("&since=c7"), "{}", session.path);
                assert!((ms(1_500)..ms(1_600)).contains(&start.elapsed()), "{:?}", start.elapsed());
                while let Some(send) = session.next_send().await {
                    session.ack(&send, "stored").await;
                    told.send(send.nonce).unwrap();
                }
            }
        });
        let report = report.await;
        let mut seen = Vec::new();
        while let Ok(nonce) = nonces.try_recv() {
            seen.push(nonce);
        }
        assert_eq!(seen.len(), 5);
        assert_eq!((&seen[3], &seen[4]), (&seen[0], &seen[2]));
        assert_eq!((report.sent, report.resent, report.accepted, report.reconnects), (3, 2, 3, 1));
        assert!(report.is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_away_is_given_up_after_the_patience() {
        let dial = FakeServer::start_once(|_, mut session: FakeSession| async move {
            session.next_send().await;
        });
        let start = Instant::now();
        let report = play(lines(&[0, 5_000]), config(), dial, &Shutdown::default(), no_progress()).await.unwrap();
        assert!((ms(20_000)..ms(31_000)).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!((report.sent, report.unanswered, report.unsent, report.given_up.len()), (1, 1, 1, 1));
        assert!(!report.is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_task_fails_counts_as_given_up() {
        // No clock reaches so far: adding it to the time of day panics, as a mistake of ours would.
        let config = ReplayConfig { patience: Duration::MAX, ..config() };
        let dial = FakeServer::start(|_, mut session: FakeSession| async move {
            session.next_send().await;
        });
        let report = play(lines(&[0]), config, dial, &Shutdown::default(), no_progress()).await.unwrap();
        assert_eq!((report.given_up.len(), report.is_clean()), (1, false), "{report}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_sending_and_waits_for_the_answers() {
        let dial = FakeServer::start(|_, mut session: FakeSession| async move {
            let send = session.next_send().await.unwrap();
            sleep(ms(3_000)).await;
            session.ack(&send, "stored").await;
            session.next_send().await;
        });
        let stop = Shutdown::default();
        let stopper = stop.clone();
        tokio::spawn(async move {
            sleep(ms(1_000)).await;
            stopper.begin(ms(5_000));
        });
        let report = play(lines(&[0, 60_000]), config(), dial, &stop, no_progress()).await.unwrap();
        assert_eq!((report.sent, report.accepted, report.unanswered, report.unsent), (1, 1, 0, 1));
        assert!(report.is_clean() && report.duration < ms(3_500), "{report:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn reading_goes_on_while_the_server_takes_nothing() {
        // The server takes nothing until it has said far more than the connection buffers.
        let report = replay(&[0; 2_000], ReplayConfig { connections: 1, ..config() }, |_, mut session| async move {
            let frame = format!(r#"{{"type":"comments","cursor":"c","comments":["{}"]}}"#, "x".repeat(100_000));
            for _ in 0..50 {
                session.say(&frame).await;
            }
            while let Some(send) = session.next_send().await {
                session.ack(&send, "stored").await;
            }
        });
        assert_eq!(report.await.stored, Some(2_000));
    }

    #[tokio::test]
    async fn an_absent_server_is_one_clear_line() {
        // Bound and dropped, so that nobody listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let target = Target::parse(&format!("http://127.0.0.1:{port}")).unwrap();
        let config = ReplayConfig { target, file: "tests/data/live-trace-a.csv".into(), ..config() };
        let error = run(config, &Shutdown::default(), no_progress()).await.unwrap_err().to_string();
        assert!(error.contains("cannot be reached") && !error.contains('\n'), "{error}");
    }

    /// A listener on a port of its own, and the configuration that reaches it with the recorded stream.
    async fn listen() -> (tokio::net::TcpListener, ReplayConfig) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        (listener, ReplayConfig { target, file: "tests/data/live-trace-a.csv".into(), ..config() })
    }

    #[tokio::test]
    async fn a_recorded_span_is_replayed_over_real_sockets() {
        let (listener, config) = listen().await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut session = FakeSession::accept(stream).await;
                    while let Some(send) = session.next_send().await {
                        session.ack(&send, "accepted").await;
                    }
                });
            }
        });
        let until = Some(Duration::from_secs(600));
        let config = ReplayConfig { speed: 1_000.0, connections: 4, ack: AckLevel::Accepted, until, ..config };
        let report = run(config, &Shutdown::default(), no_progress()).await.unwrap();
        assert!(report.sent > 100, "{report}");
        assert_eq!((report.accepted, report.stored, report.is_clean()), (report.sent, None, true), "{report}");
    }

    #[tokio::test]
    async fn a_server_that_is_not_ours_is_one_clear_line() {
        use tokio::io::AsyncWriteExt as _;
        for (answer, says) in [
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answered 404 instead of opening a WebSocket"),
            ("220 mail ready\r\n\r\n", "does not speak WebSocket"),
        ] {
            let (listener, config) = listen().await;
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
                // Reads on, so that the answer is not lost to a reset.
                let _read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            });
            let error = run(config, &Shutdown::default(), no_progress()).await.unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn an_empty_span_is_told_with_what_there_is() {
        let config = ReplayConfig { from: Some(ms(7_000)), ..config() };
        let error = plan(lines(&[500, 2_000]), &config).unwrap_err().to_string();
        assert_eq!(error, "t.csv has no comments between --from-ms and --until-ms; it spans 500 to 2000 ms");
    }
}
