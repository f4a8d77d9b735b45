//! Who may do what: every route, every role, every room; tokens that are none; and what becomes of a connection whose
//! token ends.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error;

use super::support::server::{PATIENCE, Server, Start, raw, run, until};
use super::support::viewer::Viewer;

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";

/// With keys, and no limits that would be in the way.
fn with_keys(more: &str) -> String {
    format!("[limits]\nmin_interval = \"0s\"\n[auth]\nsecret = \"{SECRET}\"\nleeway = \"0s\"\n{more}")
}

/// A moment from now, in seconds since 1970.
fn from_now(secs: i64) -> i64 {
    #[expect(clippy::disallowed_methods, reason = "as another program would")]
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + secs
}

fn signed(secret: &str, head: &Value, claims: &Value) -> String {
    let text = [head, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// A token that is good for a minute, with these claims.
fn token(claims: Value) -> String {
    let mut all = json!({"sub": "u1", "exp": from_now(60)});
    all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    signed(SECRET, &json!({"alg": "HS256", "typ": "JWT"}), &all)
}

/// Why a handshake is refused.
async fn refused(server: &Server, room: &str, query: &str) -> (u16, String) {
    match Viewer::try_join(server.address, room, query).await {
        Err(Error::Http(answer)) => {
            let body: Value = serde_json::from_slice(answer.body().as_deref().unwrap_or_default()).unwrap();
            (answer.status().as_u16(), body["code"].as_str().unwrap().to_owned())
        }
        Err(error) => panic!("{error}"),
        Ok(viewer) => panic!("it is let in: {}", viewer.hello),
    }
}

/// What each caller is answered: `.` is let through, T `token_required`, W `wrong_room`, F `forbidden`. Guests are asked
/// about with `anonymous` at send, read and none; the others are a viewer, one with a ticket for r1, a moderator of r1, a
/// host of r1 and an administrator, in r1 and then in r2.
#[rustfmt::skip]
const EXPECTED: [(&str, &str, &str, &str); 12] = [
    ("GET /ws/{room}",                  "..T", ".....", ".W..."),
    ("GET /api/rooms/{room}",           "..T", ".....", ".W..."),
    ("GET /api/rooms/{room}/comments",  "..T", ".....", ".W..."),
    ("POST /api/rooms/{room}/comments", ".TT", ".....", ".W..."),
    ("GET /api/ledger",                 "TTT", "FFFF.", "FFFF."),
    ("GET /metrics",                    "TTT", "FFFF.", "FFFF."),
    ("GET /healthz",                    "...", ".....", "....."),
    ("GET /readyz",                     "...", ".....", "....."),
    ("GET /api/openapi.json",           "...", ".....", "....."),
    ("GET /",                           "...", ".....", "....."),
    ("GET /rooms/{room}",               "...", ".....", "....."),
    ("GET /assets/{file}",              "...", ".....", "....."),
];

const CALLERS: [&str; 5] = ["viewer", "ticket", "moderator", "host", "admin"];

fn token_of(caller: &str) -> String {
    token(match caller {
        "viewer" => json!({"role": "viewer"}),
        "ticket" => json!({"rooms": ["r1"]}),
        role => json!({"role": role, "rooms": ["r1"]}),
    })
}

/// Asks a route, and checks the answer: its letter, its code, and that the description knows it.
async fn ask(server: &Server, description: &Value, route: &str, room: &str, token: Option<&str>, expected: char) {
    let (method, path) = route.split_once(' ').unwrap();
    let address = path.replace("{room}", room).replace("{file}", "app.js");
    let by_query = token.map_or_else(|| address.clone(), |token| format!("{address}?token={token}"));
    let (status, head, body) = server.request(method, &by_query, r#"{"text":"x"}"#).await;
    let code = serde_json::from_str::<Value>(&body).ok().and_then(|body| body["code"].as_str().map(str::to_owned));
    let code = code.unwrap_or_default();
    let letter = match (status, code.as_str()) {
        (401, "token_required") => 'T',
        (403, "wrong_room") => 'W',
        (403, "forbidden") => 'F',
        (401 | 403, other) => panic!("{route}: {status} {other}"),
        _ => '.',
    };
    assert_eq!(letter, expected, "{route} in {room} with {token:?}: {status} {body}");
    assert_eq!(status == 401, head.contains("\r\nwww-authenticate: bearer"), "{head}");
    let told = &description["paths"][path][method.to_lowercase()]["responses"][status.to_string()]["description"];
    let told = told.as_str().unwrap_or_else(|| panic!("{route} does not describe its {status}"));
    assert!(letter == '.' || told.contains(&format!("`{code}`")), "{route}: {code} is not in {told}");
    if let Some(token) = token {
        let head = format!(
            "{method} {address} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: bearer {token}\r\n\
             Content-Length: 12\r\n\r\n{{\"text\":\"x\"}}"
        );
        let answer = raw(server.address, head.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{route} by header: {answer}");
    }
}

#[tokio::test]
async fn every_route_is_for_whom_the_table_says() {
    for (column, anonymous) in ["send", "read", "none"].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let server = Start::in_folder(folder.path()).config(&with_keys(&format!("anonymous = \"{anonymous}\""))).run();
        until("it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
        let (_, description) = server.get("/api/openapi.json").await;
        let paths = description["paths"].as_object().unwrap().iter();
        let named: BTreeSet<_> = paths
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            .collect();
        assert_eq!(named, EXPECTED.iter().map(|(route, ..)| (*route).to_owned()).collect());
        for (route, guests, own, other) in EXPECTED {
            ask(&server, &description, route, "r1", None, guests.chars().nth(column).unwrap()).await;
            for (room, letters) in [("r1", own), ("r2", other)] {
                for (caller, letter) in CALLERS.into_iter().zip(letters.chars()) {
                    ask(&server, &description, route, room, Some(&token_of(caller)), letter).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_socket_gives_each_caller_its_role_in_that_room_and_no_more() {
    for anonymous in ["send", "read", "none"] {
        let folder = tempfile::tempdir().unwrap();
        let server = Start::in_folder(folder.path()).config(&with_keys(&format!("anonymous = \"{anonymous}\""))).run();
        for (caller, own, other) in [
            ("viewer", "viewer", Some("viewer")),
            ("ticket", "viewer", None),
            ("moderator", "moderator", Some("viewer")),
            ("host", "host", Some("viewer")),
            ("admin", "admin", Some("admin")),
        ] {
            let query = format!("name=Eve&token={}", token_of(caller));
            for (room, role) in [("r1", Some(own)), ("r2", other)] {
                let Some(role) = role else {
                    assert_eq!(refused(&server, room, &query).await, (403, "wrong_room".into()), "{caller}");
                    continue;
                };
                let mut viewer = Viewer::join(server.address, room, &query).await;
                assert_eq!(viewer.hello["self"], json!({"uid": "u1", "name": "Eve", "role": role}), "{caller} {room}");
                assert_eq!(viewer.say("n", caller, "stored").await["type"], "ack", "{caller} {room}");
            }
        }
        if anonymous == "none" {
            assert_eq!(refused(&server, "r1", "").await, (401, "token_required".into()));
            continue;
        }
        let mut guest = Viewer::join(server.address, "r1", "guest=0123456789abcdef").await;
        assert!(guest.hello["self"]["uid"].as_str().unwrap().starts_with("g-"), "{}", guest.hello);
        let answer = guest.say("n2", "hello", "accepted").await;
        if anonymous == "send" {
            assert_eq!(answer["type"], "ack", "{answer}");
            continue;
        }
        assert_eq!((&answer["type"], &answer["code"]), (&json!("error"), &json!("token_required")), "{answer}");
        let admin = format!("/metrics?token={}", token_of("admin"));
        let (_, _, metrics) = server.request("GET", &admin, "").await;
        assert!(metrics.contains("danmaku_refused_total{code=\"token_required\"} 1"), "it is counted");
        let mut host = Viewer::join(server.address, "r1", &format!("token={}", token_of("host"))).await;
        host.say("n3", "to all", "accepted").await;
        assert_eq!(guest.texts_until("to all").await.last().unwrap(), "to all", "it watches on");
    }
}

#[tokio::test]
async fn tokens_that_are_none_are_refused_everywhere_and_cost_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&with_keys("open_metrics = true")).run();
    let admin = |exp: i64| json!({"sub": "u1", "role": "admin", "exp": exp});
    let head = json!({"alg": "HS256"});
    let good = signed(SECRET, &head, &admin(from_now(60)));
    let parts: Vec<_> = good.split('.').collect();
    let none = [json!({"alg": "none"}), admin(from_now(60))].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let tampered = admin(from_now(60)).to_string().replace("u1", "u2");
    let table = [
        ("expired", signed(SECRET, &head, &admin(from_now(-1))), "token_expired"),
        ("not yet", signed(SECRET, &head, &json!({"sub": "a", "exp": from_now(60), "nbf": from_now(30)})), "bad_token"),
        ("for ever", signed(SECRET, &head, &json!({"sub": "a"})), "bad_token"),
        ("alg none", format!("{}.{}.", none[0], none[1]), "bad_token"),
        ("alg none, signed", format!("{}.{}.{}", none[0], none[1], parts[2]), "bad_token"),
        ("another key", signed(&"x".repeat(48), &head, &admin(from_now(60))), "bad_token"),
        ("another family", signed(SECRET, &json!({"alg": "RS256"}), &admin(from_now(60))), "bad_token"),
        ("tampered", format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(tampered), parts[2]), "bad_token"),
        ("cut", good[..good.len() - 2].to_owned(), "bad_token"),
        ("oversized", token(json!({"padding": "x".repeat(4000)})), "bad_token"),
        ("a guest's id", token(json!({"sub": "g-0123456789abcdef"})), "bad_token"),
        ("log injection", token(json!({"sub": "a\n2026 ERROR b"})), "bad_token"),
        ("empty", String::new(), "bad_token"),
    ];
    for (attack, bad, code) in &table {
        assert_eq!(refused(&server, "r1", &format!("token={bad}")).await, (401, (*code).into()), "{attack}");
        let (status, _, body) = server.request("GET", &format!("/api/ledger?token={bad}"), "").await;
        assert!(status == 401 && body.contains(code), "{attack}: {status} {body}");
        let (status, body) = server.post("r1", &format!("token={bad}"), &json!({"text": "x"})).await;
        assert_eq!((status, &body["code"]), (401, &json!(code)), "{attack}");
        let head =
            format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {bad}\r\n\r\n");
        assert!(raw(server.address, head.as_bytes()).await.starts_with("HTTP/1.1 401"), "{attack} in the header");
    }
    let giant = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", "x".repeat(100_000));
    assert!(raw(server.address, giant.as_bytes()).await.starts_with("HTTP/1.1 431"));
    assert_eq!(refused(&server, "r1", &format!("token={good}&token={good}")).await, (400, "bad_query".into()));
    let basic = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic eDp4\r\n\r\n";
    assert!(raw(server.address, basic.as_bytes()).await.starts_with("HTTP/1.1 200"), "that is a proxy's");
    assert_eq!(server.metric("danmaku_accepted_total").await, 0);
    assert_eq!(server.metric("danmaku_access_refused_total{code=\"token_expired\"}").await, 4, "each way once");
    server.is_well().await;
    let end = server.stop().await;
    assert!(!end.stderr.contains(parts[1]) && !end.stderr.contains("2026 ERROR b"), "{}", end.stderr);
}

#[tokio::test]
async fn who_has_a_token_is_one_user_on_all_connections() {
    let folder = tempfile::tempdir().unwrap();
    let config = with_keys("").replace("\"0s\"\n[auth]", "\"1h\"\nburst = 1\n[auth]");
    let server = Start::in_folder(folder.path()).config(&config).run();
    let query = format!("token={}", token(json!({"name": "Ann"})));
    let (mut one, mut two) =
        (Viewer::join(server.address, "r1", &query).await, Viewer::join(server.address, "r1", &query).await);
    let first = one.say("n1", "x", "stored").await;
    assert_eq!(first["type"], "ack", "{first}");
    assert_eq!(two.say("n1", "x", "stored").await["id"], first["id"], "the same nonce is the same comment");
    assert_eq!(two.say("n2", "y", "stored").await["code"], "rate_limited");
    let (status, _) = server.post("r2", &query, &json!({"text": "z"})).await;
    assert_eq!(status, 429);
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!(window["comments"][0]["uid"], "u1");
    assert_eq!(window["comments"][0]["name"], "Ann");
}

#[tokio::test]
async fn a_connection_whose_token_ends_is_told_and_closed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&with_keys("open_metrics = true")).run();
    let mut guest = Viewer::join(server.address, "r1", "").await;
    let ends = from_now(2);
    let mut viewer = Viewer::join(server.address, "r1", &format!("token={}", token(json!({"exp": ends})))).await;
    let mut longer =
        Viewer::join(server.address, "r1", &format!("token={}", token(json!({"exp": 4_000_000_000_u32})))).await;
    let mut ever = Viewer::join(server.address, "r1", &format!("token={}", token(json!({"exp": 1e300})))).await;
    viewer.say("n1", "before", "accepted").await;
    // Pings alone would keep it waiting for ever.
    let (code, frames) = timeout(PATIENCE, viewer.closed()).await.expect("it is closed");
    assert_eq!(code, Some(4005));
    assert_eq!(frames.last().unwrap()["code"], "token_expired", "{frames:?}");
    assert!(from_now(0) >= ends, "not before its time");
    for other in [&mut guest, &mut longer, &mut ever] {
        assert_eq!(other.say("n2", "after", "accepted").await["type"], "ack", "the others stay");
    }
    let counted = "danmaku_sessions_ended_total{code=\"token_expired\"}";
    until("it is counted", async || server.metric(counted).await == 1).await;
}

#[tokio::test]
async fn the_first_start_prints_the_way_in_for_a_host() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Start::in_folder(&data).config("[log]\nfilter = \"danmakud=trace\"").run();
    let address = server.address;
    let secret = data.join("auth-secret");
    let mode = |path: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
    assert_eq!(mode(&secret) & 0o777, 0o600);
    let data_dir = data.to_str().unwrap();
    let made =
        run(&["token", "--data-dir", data_dir, "--room", "r1", "--room", "r3", "--role", "host", "--uid", "ann"]).await;
    assert_eq!((made.code, made.stdout.lines().count()), (Some(0), 1), "{made:?}");
    let query = format!("token={}", made.stdout.trim());
    for (room, role) in [("r1", "host"), ("r3", "host"), ("r2", "viewer")] {
        let viewer = Viewer::join(address, room, &query).await;
        assert_eq!(viewer.hello["self"], json!({"uid": "ann", "name": "ann", "role": role}));
    }
    let (status, _, _) = server.request("GET", "/metrics", "").await;
    assert_eq!(status, 200, "who has set no keys has open metrics");
    let end = server.stop().await;
    end.ledger();
    assert!(!end.stderr.contains(made.stdout.trim()) && !end.stderr.contains("token=ey"), "{}", end.stderr);
    let link = end.stdout.lines().next().and_then(|line| line.strip_prefix("host's page: ")).expect("a link");
    let (page, token) = link.split_once("#token=").unwrap();
    assert_eq!(page, format!("http://{address}/rooms/lobby"));
    let server = Start::in_folder(&data).run();
    let host = Viewer::join(server.address, "lobby", &format!("token={token}")).await;
    assert_eq!(host.hello["self"]["role"], "host", "the secret is the same after a restart");
    let script = server.request("GET", "/assets/app.js", "").await.2;
    assert!(script.contains("location.hash") && script.contains("4005"), "the page takes the token");
    let again = server.stop().await;
    assert!(!again.stdout.contains("host's page"), "{again:?}");
}

#[tokio::test]
async fn a_token_that_would_be_good_for_nothing_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let table: [(&[&str], i32, &str); 6] = [
        (&["--role", "host", "--room", "r1"], 1, "has no secret yet"),
        (&["--role", "owner"], 64, "viewer, moderator, host, admin"),
        (&["--role", "host", "--room", "a/b"], 64, "a room id is"),
        (&["--room", "r1"], 64, "--role"),
        (&["--role", "host", "--room", "r1", "--ttl", "soon"], 64, "--ttl"),
        (
            &["--role", "host", "--room", "r1", "--mongodb", "mongodb://h", "--redis", "redis://h"],
            1,
            "tokens are refused",
        ),
    ];
    for (args, code, told) in table {
        let end = run(&[&["token", "--data-dir", empty], args].concat()).await;
        assert_eq!((end.code, end.stdout.as_str()), (Some(code), ""), "{args:?}: {end:?}");
        assert!(end.stderr.contains(told), "{args:?}: {end:?}");
    }
}

#[tokio::test]
async fn keys_in_a_file_are_changed_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, SECRET).unwrap();
    let config = format!("[auth]\nkeys = \"{}\"\nanonymous = \"none\"\nopen_metrics = true", keys.display());
    let server = Start::in_folder(&folder.path().join("data")).config(&config).run();
    let old = format!("token={}", token(json!({})));
    let new_secret = "f".repeat(48);
    let claims = json!({"sub": "u2", "exp": from_now(60)});
    let new = format!("token={}", signed(&new_secret, &json!({"alg": "HS256"}), &claims));
    Viewer::join(server.address, "r1", &old).await;
    assert_eq!(refused(&server, "r1", &new).await.1, "bad_token");
    std::fs::write(&keys, &new_secret).unwrap();
    until("the new key is known", async || Viewer::try_join(server.address, "r1", &new).await.is_ok()).await;
    assert_eq!(refused(&server, "r1", &old).await.1, "bad_token");
    std::fs::write(&keys, "broken").unwrap();
    assert!(Viewer::try_join(server.address, "r1", &new).await.is_ok());
    let broken = Start::in_folder(&folder.path().join("other")).config(&config).fail().await;
    assert!(broken.code == Some(1) && broken.stderr.contains("at least 32 bytes"), "{broken:?}");
}

#[tokio::test]
async fn a_dead_issuer_keeps_nobody_out_who_has_no_token() {
    let folder = tempfile::tempdir().unwrap();
    // Bound and dropped, so that nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!("[auth]\nkeys = \"http://127.0.0.1:{port}/keys.json\"\nopen_metrics = true");
    let server = Start::in_folder(folder.path()).config(&config).run();
    assert_eq!(refused(&server, "r1", &format!("token={}", token(json!({})))).await, (503, "keys_unavailable".into()));
    server.is_well().await;
}
