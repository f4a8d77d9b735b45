//! `danmakud load` against real servers: its verdict, and what it says of a command line that cannot be meant.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::nodes::Pair;
use super::support::faulty_wire::{FaultyWire, Which, Wrong};
use super::support::server::{End, NO_LIMITS, PATIENCE, Server, Start, run, until};

/// What viewers can be given that is wrong, as the report names it.
const FAULTS: [&str; 7] = ["lost", "doubled", "outOfOrder", "wrongRoom", "damaged", "gapsUntold", "gapsTold"];

fn server(data: &TempDir) -> Server {
    Start::in_folder(data.path()).config(NO_LIMITS).run()
}

/// Runs a load test and gives its end and its report.
async fn load(target: SocketAddr, args: &str) -> (End, Value) {
    let (folder, target) = (TempDir::new().unwrap(), format!("http://{target}"));
    let report = folder.path().join("a/b");
    let mut all = vec!["load", "--target", &target, "--report", report.to_str().unwrap()];
    all.extend(args.split(' ').filter(|arg| !arg.is_empty()));
    let end = run(&all).await;
    assert!(report.join("report.html").exists(), "{end:?}");
    let json = std::fs::read(report.join("report.json")).unwrap_or_else(|error| panic!("{error}: {end:?}"));
    (end, serde_json::from_slice(&json).unwrap())
}

/// Which faults there are, and how many.
fn faults(report: &Value) -> Vec<(&'static str, u64)> {
    let count = |name| (name, report["faults"][name].as_u64().unwrap());
    FAULTS.map(count).into_iter().filter(|(_, count)| *count > 0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_run_twice_has_the_same_verdict_and_its_figures_add_up() {
    let data = TempDir::new().unwrap();
    let server = server(&data);
    for _ in 0..2 {
        let args = "--viewers 40 --rooms 3 --skew 1 --rate 100 --duration 2s --objective lost=0,errors=0";
        let (end, report) = load(server.address, args).await;
        assert_eq!((end.code, faults(&report)), (Some(0), Vec::new()), "{end:?}");
        assert_eq!(report["hasHeld"], true);
        let counts = &report["counts"];
        assert_eq!((&counts["sent"], &counts["connected"]), (&counts["accepted"], &Value::from(40)), "{counts}");
        assert!(counts["sent"].as_u64().unwrap() > 100, "{counts}");
        assert_eq!(report["server"]["ledgerBalances"], true, "{}", report["server"]);
        assert!(report["server"]["cpuSeconds"].as_f64().unwrap() > 0.0, "{}", report["server"]);
        for latency in ["join", "accepted", "stored", "delivery", "query"] {
            assert!(report["latency"][latency]["p99Ms"].as_f64().is_some(), "{latency}");
        }
    }
    assert!(server.stop().await.ledger().accepted > 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_frame_among_thousands_is_found_and_named() {
    let data = TempDir::new().unwrap();
    let server = server(&data);
    let delay = Duration::from_secs(3);
    for (wrong, name) in [
        (Wrong::Nothing, None),
        (Wrong::Drops, Some("lost")),
        (Wrong::Doubles, Some("doubled")),
        (Wrong::Swaps, Some("outOfOrder")),
        (Wrong::Damages, Some("damaged")),
        (Wrong::Strays, Some("wrongRoom")),
        (Wrong::Delays(delay), None),
    ] {
        let which = Which { first: 1200, one_in: 10_000 };
        let wire = FaultyWire::start(server.address, wrong, which).await;
        let args = "--viewers 60 --rooms 2 --rate 60 --arrivals even --duration 4s --objective max=2900ms";
        let (end, report) = load(wire.address, args).await;
        assert!(wire.frames() > 2000, "{} frames", wire.frames());
        let found: Vec<_> = name.into_iter().map(|name| (name, wire.comments())).collect();
        assert_eq!(faults(&report), found, "{wrong:?}: {end:?} {}", report["faults"]);
        let held = report["objectives"][0]["isHeld"].as_bool().unwrap();
        // What never came took until the end at least.
        let is_late = matches!(wrong, Wrong::Delays(_) | Wrong::Drops);
        assert_eq!(held, !is_late, "{wrong:?}: {}", report["objectives"]);
        assert_eq!(end.code, Some(i32::from(wrong != Wrong::Nothing)), "{wrong:?}: {end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_every_taste_and_temper_get_what_is_theirs() {
    let data = TempDir::new().unwrap();
    let server = server(&data);
    let common = "--viewers 60 --rate 150 --duration 3s --objective lost=0,errors=0";
    for args in [
        "--compress zstd",
        "--compress br --compress-share 0.5",
        "--compress deflate --tier 10 --tier-share 0.3",
        "--storm-every 1s --storm-within 300ms",
        "--misbehaving 16",
        "--slow 0.3 --slow-bytes 1000 --text 90..100",
        "--ramp 2s --send-in-ramp true --leave 1s",
        "--ack accepted --trace evening --trace-from 160m --trace-speed 50",
    ] {
        // A profile's rate would go before the trace.
        let common = if args.contains("--trace") { common.replace("--rate 150 ", "") } else { common.to_owned() };
        let (end, report) = load(server.address, &format!("{common} {args}")).await;
        let counts = &report["counts"];
        assert_eq!((end.code, faults(&report)), (Some(0), Vec::new()), "{args}: {end:?} {}", report["faults"]);
        let has = |name: &str| counts[name].as_u64().unwrap() > 0;
        assert!(has("accepted") && has("deliveries"), "{args}: {counts}");
        assert_eq!(has("leftOut"), args.contains("--tier"), "{args}: {counts}");
        assert_eq!(has("reconnects"), args.contains("--storm"), "{args}: {counts}");
        assert!(counts["refused"].as_object().unwrap().is_empty(), "{args}: {counts}");
        let misbehaved: Vec<_> = counts["misbehaved"].as_object().unwrap().keys().map(String::as_str).collect();
        let of_all = ["1002", "1003", "1007", "1009", "bad_json", "text_too_long", "unknown_type"];
        let expected = if args.contains("--misbehaving") { &of_all[..] } else { &[] };
        assert_eq!(misbehaved, expected, "{args}: {counts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_nodes_are_one_service_to_it() {
    let pair = Pair::start("load").await;
    let second = format!("http://{}", pair.two.address);
    let args = format!(
        "--target {second} --rooms 2 --viewers 40 --rate 80 --duration 3s --storm-every 1s --storm-within 200ms \
         --objective lost=0,errors=0"
    );
    let (end, report) = load(pair.one.address, &args).await;
    let counts = &report["counts"];
    assert_eq!((end.code, faults(&report)), (Some(0), Vec::new()), "{end:?} {}", report["faults"]);
    let (deliveries, accepted) = (counts["deliveries"].as_u64().unwrap(), counts["accepted"].as_u64().unwrap());
    // A room has 20 viewers, half of them on each node; storms keep some from having all.
    assert!(deliveries > 15 * accepted && accepted > 150, "{counts}");
    assert_eq!(report["server"]["ledgerBalances"], true, "{}", report["server"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_early_with_a_report() {
    let (data, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = server(&data);
    let target = format!("http://{}", server.address);
    let report = folder.path().join("report.json");
    let args = ["load", "--target", &target, "--viewers", "10", "--duration", "1h", "--report"];
    let mut load = tokio::process::Command::new(env!("CARGO_BIN_EXE_danmakud"))
        .args(args)
        .arg(folder.path())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until("comments are delivered", async || server.metric("danmaku_deliveries_total").await > 50).await;
    let id = load.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let end = timeout(PATIENCE, load.wait()).await.expect("it ends").unwrap();
    assert_eq!(end.code(), Some(1), "what was ended early is no verdict");
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert!(report["counts"]["deliveries"].as_u64().unwrap() > 40, "{}", report["counts"]);
    assert_eq!((&report["hasBeenStopped"], &report["hasHeld"]), (&Value::from(true), &Value::from(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_the_middle_has_not_held() {
    let (data, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = server(&data);
    let target = format!("http://{}", server.address);
    let report = folder.path().to_str().unwrap();
    let args = ["load", "--target", &target, "--viewers", "20", "--rate", "50", "--duration", "8s", "--report", report];
    let die = async {
        until("comments are delivered", async || server.metric("danmaku_deliveries_total").await > 50).await;
        server.signal("KILL");
    };
    let (end, ()) = tokio::join!(run(&args), die);
    assert_eq!(end.code, Some(1), "{end:?}");
    let verdict = end.stdout.lines().last().unwrap();
    for says in
        ["BROKE: ", "20 viewers never came", "connections failed", "could not be sent, for nobody was connected"]
    {
        assert!(verdict.contains(says), "{says}: {end:?}");
    }
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report["server"]["ledgerBalances"], Value::Null, "the dead tell nothing");
    // What nobody could send was late for all who waited for it.
    assert!(report["latency"]["delivery"]["p99Ms"].as_f64().unwrap() > 1000.0, "{}", report["latency"]["delivery"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_full_has_not_held() {
    let data = TempDir::new().unwrap();
    let config = format!("{NO_LIMITS}max_connections = 10\n");
    let server = Start::in_folder(data.path()).config(&config).run();
    let args = "--viewers 40 --senders 40 --duration 1s --query-rate 0";
    let (end, report) = load(server.address, args).await;
    assert_eq!(end.code, Some(1), "{end:?}");
    assert!(report["counts"]["neverCame"].as_u64().unwrap() >= 30, "{}", report["counts"]);
    assert!(end.stdout.lines().last().unwrap().contains("viewers never came"), "{end:?}");
    // They waited, over all attempts, for as long as there was anything to wait for.
    assert!(report["latency"]["join"]["p99Ms"].as_f64().unwrap() > 5000.0, "{}", report["latency"]["join"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_is_gone_or_whose_disk_is_full_does_not_cost_the_report() {
    let (data, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = server(&data);
    let target = format!("http://{}", server.address);
    let mut load = tokio::process::Command::new(env!("CARGO_BIN_EXE_danmakud"));
    load.args(["load", "--target", &target, "--viewers", "5", "--duration", "1s", "--report"]).arg(folder.path());
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    load.stdout(full()).stderr(full()).kill_on_drop(true);
    let end = timeout(PATIENCE, load.status()).await.expect("it ends").unwrap();
    assert_eq!(end.code(), Some(0));
    assert!(folder.path().join("report.json").exists() && folder.path().join("report.html").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_load_that_holds_is_found_and_two_reports_are_compared() {
    let data = TempDir::new().unwrap();
    // A user may send one comment a second: that is what gives way.
    let server = Start::in_folder(data.path()).config("[limits]\nburst = 1\n").run();
    let args = "--viewers 4 --senders 4 --rate 1 --arrivals even --duration 2s --query-rate 0 --find-capacity \
                --objective refused=0";
    let (end, report) = load(server.address, args).await;
    assert_eq!((end.code, faults(&report)), (Some(0), Vec::new()), "{end:?}");
    assert!(end.stdout.contains("highest load that held") && end.stdout.contains("gave way first"), "{end:?}");
    let rate = report["summary"]["rate"].as_f64().unwrap();
    assert!((2.0..=6.0).contains(&rate), "{end:?}");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.json");
    std::fs::write(&file, report.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let end = run(&["load", "--compare", file, file]).await;
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.stdout.contains("delivery"), "{end:?}");
    let end = run(&["load", "--compare", file, "/no/such.json"]).await;
    assert_eq!((end.code, end.stderr.lines().count()), (Some(1), 1), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_counted_and_comes_with_advice() {
    let data = TempDir::new().unwrap();
    let server = Start::in_folder(data.path()).run();
    let args = "--viewers 5 --senders 1 --rate 50 --duration 2s --objective refused=0";
    let (end, report) = load(server.address, args).await;
    assert_eq!((end.code, faults(&report)), (Some(1), Vec::new()), "{end:?}");
    assert!(report["counts"]["refused"]["rate_limited"].as_u64().unwrap() > 20, "{}", report["counts"]);
    assert!(end.stderr.contains("have more --senders"), "{}", end.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_told_in_one_line() {
    let folder = TempDir::new().unwrap();
    let profile = folder.path().join("nonsense.toml");
    std::fs::write(&profile, "viewers = 10\nvewers = 10\n").unwrap();
    let profile = profile.to_str().unwrap();
    // A port that nobody listens on, and one that does not speak HTTP.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closing = silent.local_addr().unwrap();
    tokio::spawn(async move { while silent.accept().await.is_ok() {} });
    for (args, code, says) in [
        (vec!["--target".to_owned(), format!("http://{free}")], 1, "cannot be reached: Connection refused"),
        (vec!["--target".to_owned(), format!("http://{closing}")], 1, "does not speak WebSocket"),
        (vec!["--target".to_owned(), "127.0.0.1:8080".to_owned()], 64, "one looks like http://HOST:PORT"),
        (vec!["--target".to_owned(), "https://h".to_owned()], 64, "plain http://"),
        (vec!["--profile".to_owned(), profile.to_owned()], 64, "nonsense.toml, line 2: unknown field `vewers`"),
        (
            vec!["--profile".to_owned(), "no-such".to_owned()],
            64,
            "no-such is neither a shipped profile (quiet-evening,",
        ),
        (vec!["--rate".to_owned(), "0".to_owned()], 64, "--rate: 0 is not within"),
        (vec!["--objective".to_owned(), "p98=1s".to_owned()], 64, "there is no objective \"p98\""),
        (vec!["--target".to_owned(), "http://h?token=SECRET".to_owned()], 64, "give a token with --token"),
        (vec!["--trace-speed".to_owned(), "2".to_owned()], 64, "--trace-speed: does nothing without --trace"),
        (vec!["--source".to_owned(), "here".to_owned()], 64, "--source: \"here\" is not an address"),
        (vec!["--tokens".to_owned(), "/no/such".to_owned()], 64, "--tokens: /no/such cannot be read: No such file"),
    ] {
        let mut all = vec!["load"];
        all.extend(args.iter().map(String::as_str));
        let end = run(&all).await;
        assert_eq!((end.code, end.stdout.as_str()), (Some(code), ""), "{args:?}: {end:?}");
        assert!(end.stderr.contains(says) && end.stderr.lines().count() == 1, "{args:?}: {end:?}");
    }
}
