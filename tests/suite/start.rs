//! Starting and refusing to start: exit codes, and one clear sentence for people.

use super::support::mongod::ReplicaSet;
use super::support::redis::RedisServer;
use super::support::server::{End, LastLine, Start, run, until};

/// The one line that says why, and that nothing was served.
fn sentence(end: &End) -> &str {
    let lines: Vec<_> = end.stderr.lines().filter(|line| line.starts_with("danmakud: ")).collect();
    assert!(lines.len() == 1 && !end.stdout.contains("listening"), "{end:?}");
    lines[0]
}

async fn check(toml: &str, args: &[&str]) -> End {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("danmakud.toml");
    std::fs::write(&file, toml).unwrap();
    let file = file.to_str().unwrap();
    run(&[&["check", "--config", file], args].concat()).await
}

#[tokio::test]
async fn check_says_whether_the_configuration_is_right() {
    let good = check("[limits]\nburst = 7", &["--listen", "127.0.0.1:0"]).await;
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""), "{good:?}");
    assert!(good.stdout.contains("the configuration is right"), "{good:?}");
    let table: [(&str, &[&str], &[&str]); 8] = [
        ("[limits]\nburst = 0", &[], &["danmakud.toml", "limits.burst", "1 to"]),
        ("[limits]\nbrust = 1", &[], &["danmakud.toml", "limits.brust"]),
        ("[limits]\nmin_interval = \"fast\"", &[], &["danmakud.toml", "limits.min_interval", "such as"]),
        ("[room]\nring = 10\nrecent = 20", &[], &["danmakud.toml", "room.recent", "room.ring"]),
        ("not toml", &[], &["danmakud.toml"]),
        ("", &["--listen", "nowhere"], &["--listen", "listen"]),
        ("", &["--mongodb", "http://user:secret@x"], &["--mongodb", "mongodb.uri", "mongodb://"]),
        ("", &["--redis", "redis://x"], &["redis.url", "mongodb.uri"]),
    ];
    for (toml, args, words) in table {
        let bad = check(toml, args).await;
        assert_eq!((bad.code, bad.stdout.as_str()), (Some(64), ""), "{toml} {args:?}: {bad:?}");
        assert!(words.iter().all(|word| bad.stderr.contains(word)), "{words:?} in {bad:?}");
        assert!(bad.stderr.starts_with("danmakud: ") && !bad.stderr.contains("secret"), "{bad:?}");
    }
}

#[tokio::test]
async fn a_wrong_command_line_is_told_from_a_request_for_help() {
    for args in [
        &["--nonsense"][..],
        &["nonsense"],
        &["check", "--nonsense"],
        &["--listen"],
        &["health", "--listen", "x"],
        &["replay", "t.csv", "--room", "r", "--patience", "18446744073709551615"],
    ] {
        let end = run(args).await;
        assert_eq!((end.code, end.stdout.as_str()), (Some(64), ""), "{args:?}: {end:?}");
        assert!(!end.stderr.is_empty());
    }
    for args in ["--help", "--version"] {
        let end = run(&[args]).await;
        assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""), "{args}: {end:?}");
    }
}

#[tokio::test]
async fn check_refuses_addresses_that_no_driver_takes() {
    let table: [(&[&str], &[&str]); 4] = [
        (&["--mongodb", "mongodb://user:secret@:::/x?bogus=1"], &["--mongodb: mongodb.uri: ", "hosts"]),
        (&["--mongodb", "mongodb://user:secret@h/x?bogus=1"], &["--mongodb: mongodb.uri: ", "bogus"]),
        (&["--mongodb", "mongodb://u:secret@h/db?w=0"], &["--mongodb: mongodb.uri: ", "w=0"]),
        (&["--mongodb", "mongodb://h", "--redis", "redis://u:secret@h:notaport"], &["--redis: redis.url: "]),
    ];
    for (args, words) in table {
        let bad = check("", args).await;
        assert_eq!((bad.code, bad.stdout.as_str()), (Some(64), ""), "{args:?}: {bad:?}");
        assert!(words.iter().all(|word| bad.stderr.contains(word)), "{words:?} in {bad:?}");
        assert!(!bad.stderr.contains("secret"), "{bad:?}");
    }
}

#[tokio::test]
async fn check_says_what_the_configuration_comes_to() {
    let embedded = check("", &["--data-dir", "here"]).await;
    assert!(embedded.stdout.contains("store    embedded, in here/store\n"), "{embedded:?}");
    let uri = "mongodb://user:secret@db1,db2:27018/evening?replicaSet=rs0&authSource=admin";
    let joined = check("", &["--mongodb", uri, "--redis", "redis://user:secret@cache:6380/2"]).await;
    for line in [
        "store    MongoDB at db1:27017, db2:27018, database evening, collection danmaku",
        "         a comment is stored once the majority has it in the journal; writes have 10s",
        "relay    Redis at cache:6380, channels danmakud",
    ] {
        assert!(joined.stdout.lines().any(|told| told == line), "{line:?} is missing in {joined:?}");
    }
    assert!(!joined.stdout.contains("secret") && !joined.stdout.contains("Config"), "{joined:?}");
}

#[tokio::test]
async fn a_replay_that_cannot_begin_says_why_once() {
    let missing = run(&["replay", "/does/not/exist.csv", "--room", "r"]).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    let told = "danmakud: /does/not/exist.csv cannot be read: No such file or directory (os error 2)";
    assert_eq!(sentence(&missing), told);
    // Bound and dropped, so that nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let target = format!("http://127.0.0.1:{port}");
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/live-trace-a.csv");
    let absent = run(&["replay", trace, "--room", "r", "--target", &target]).await;
    assert_eq!(sentence(&absent).matches("refused").count(), 1, "{absent:?}");
}

#[tokio::test]
async fn a_bad_configuration_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let end = Start::in_folder(&folder.path().join("data")).config("[server]\nmax_fragments = 0").fail().await;
    assert_eq!(end.code, Some(64), "{end:?}");
    assert!(sentence(&end).contains("server.max_fragments"), "{end:?}");
    assert!(!folder.path().join("data").exists(), "nothing was made");
    let missing = run(&["--config", "/does/not/exist.toml"]).await;
    assert_eq!(missing.code, Some(64), "{missing:?}");
    assert!(sentence(&missing).contains("/does/not/exist.toml"), "{missing:?}");
}

#[tokio::test]
async fn an_address_or_folder_that_cannot_be_had_fails_with_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(&folder.path().join("a")).run();
    let address = server.address.to_string();
    let taken = Start::in_folder(&folder.path().join("b")).args(&["--listen", &address]).fail().await;
    assert_eq!(taken.code, Some(1), "{taken:?}");
    assert!(sentence(&taken).contains(&address), "{taken:?}");

    let second = Start::in_folder(&folder.path().join("a")).fail().await;
    assert_eq!(second.code, Some(1), "{second:?}");
    let told = sentence(&second);
    assert!(told.contains("in use by another server") && told.contains(folder.path().to_str().unwrap()), "{told}");
    server.is_well().await;

    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    for folder in [file.clone(), file.join("below")] {
        let end = Start::in_folder(&folder).fail().await;
        assert_eq!(end.code, Some(1), "{end:?}");
        assert!(sentence(&end).contains(folder.to_str().unwrap()), "{end:?}");
    }
}

#[tokio::test]
async fn health_tells_a_ready_server_from_one_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let address = server.address.to_string();
    until("it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
    for args in [&["health", "--listen", &address][..], &["health", "--ready", "--listen", &address]] {
        let ready = run(args).await;
        assert_eq!((ready.code, ready.stderr.as_str()), (Some(0), ""), "{ready:?}");
    }
    // The address is found where the server finds it.
    let file = folder.path().join("danmakud.toml");
    std::fs::write(&file, format!("listen = \"{address}\"")).unwrap();
    let told = run(&["health", "--config", file.to_str().unwrap()]).await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{told:?}");
    // A server that listens everywhere is asked at home.
    let everywhere = format!("0.0.0.0:{}", server.address.port());
    assert_eq!(run(&["health", "--listen", &everywhere]).await.code, Some(0));
    assert_eq!(server.stop().await.code, Some(0));
    let absent = run(&["health", "--listen", &address]).await;
    assert_eq!(absent.code, Some(1), "{absent:?}");
    assert!(sentence(&absent).contains(&address), "{absent:?}");
}

#[tokio::test]
async fn a_server_that_waits_for_its_redis_lives_and_is_not_ready() {
    let (folder, redis) = (tempfile::tempdir().unwrap(), RedisServer::start().await);
    let mongodb = ReplicaSet::shared().await.uri(None).replace("/?", "/lives?");
    let flags = ["--mongodb", &mongodb, "--redis", &redis.url()];
    let server = Start::in_folder(folder.path()).config("[server]\nprobe_interval = \"100ms\"").args(&flags).run();
    drop(redis);
    until("it is not ready", async || server.request("GET", "/readyz", "").await.2.contains("relay_unavailable")).await;
    let address = server.address.to_string();
    assert_eq!(run(&["health", "--listen", &address]).await.code, Some(0), "nobody should restart it");
    let ready = run(&["health", "--ready", "--listen", &address]).await;
    assert_eq!(ready.code, Some(1), "{ready:?}");
    assert!(sentence(&ready).contains("relay_unavailable"), "{ready:?}");
}

#[tokio::test]
async fn a_redis_that_cannot_be_used_as_it_is_meant_is_told_loudly() {
    let redis = RedisServer::start().await;
    let mongodb = ReplicaSet::shared().await.uri(None).replace("/?", "/loudly?");
    let at = |user: &str, database: &str| format!("redis://{user}127.0.0.1:{}{database}", redis.port());
    for (url, mode, advice) in [
        (at("bob:hunter2@", ""), "", "user and the password in redis.url"),
        (at("", "/99"), "", "database in redis.url"),
        (at("", ""), "mode = \"cluster\"", "whether this is a cluster"),
        (at("", ""), "mode = \"sentinel\"\nservice = \"s\"", "whether these are sentinels"),
    ] {
        let (folder, config) = (tempfile::tempdir().unwrap(), format!("[redis]\n{mode}"));
        let flags = ["--mongodb", &mongodb, "--redis", &url];
        let server = Start::in_folder(folder.path()).config(&config).args(&flags).run();
        let told = server.stop().await.stderr;
        assert!(told.contains("redis cannot be used until somebody acts") && told.contains(advice), "{told}");
        assert!(!told.contains("hunter2") && !told.contains("subscribed at redis"), "{told}");
    }
}

#[tokio::test]
async fn without_its_mongodb_it_fails_with_one_short_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = "[mongodb]\nserver_selection_timeout = \"300ms\"\nconnect_timeout = \"300ms\"";
    let uri = format!("mongodb://bob:hunter2@{free}");
    let end = Start::in_folder(folder.path()).config(config).args(&["--mongodb", &uri]).fail().await;
    assert_eq!(end.code, Some(1), "{end:?}");
    let told = sentence(&end);
    assert!(told.contains(&free.to_string()) && told.contains("timeout"), "{told}");
    assert!(!told.contains("Topology") && !told.contains("hunter2") && told.len() < 250, "{told}");
}

#[tokio::test]
async fn a_stop_that_comes_while_it_starts_ends_it_in_order() {
    let folder = tempfile::tempdir().unwrap();
    // A MongoDB that takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("mongodb://{}", silent.local_addr().unwrap());
    let end = Start::in_folder(folder.path()).args(&["--mongodb", &uri]).stop_when(silent.accept()).await;
    assert_eq!((end.code, end.ledger()), (Some(0), LastLine::default()), "{end:?}");
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_and_told_when_it_is_too_low() {
    let folder = tempfile::tempdir().unwrap();
    let few = Start::in_folder(&folder.path().join("few")).open_files(512, 2048).run();
    assert_eq!(few.open_files(), 2048, "it may raise its soft limit so far");
    let told = few.stop().await.stderr;
    assert!(told.contains("too low for server.max_connections") && told.contains("limit=2048"), "{told}");
    let config = "[server]\nmax_connections = 1000";
    let enough = Start::in_folder(&folder.path().join("enough")).config(config).open_files(512, 2048).run();
    assert_eq!(enough.open_files(), 2048);
    let told = enough.stop().await.stderr;
    assert!(!told.contains("too low") && told.contains("limit=2048"), "{told}");
}
