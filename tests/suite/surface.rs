//! What else the server shows: its page, its metrics, and the description of its API, held against what it does.

use std::collections::BTreeSet;

use danmakud::model::Refusal;
use danmakud::server::CODES;
use danmakud::wire::CloseReason;
use serde_json::{Map, Value, json};

use super::support::server::{NO_LIMITS, Server, Start, until};
use super::support::viewer::Viewer;

/// Every address and method that the server knows.
const ROUTES: [&str; 12] = [
    "GET /",
    "GET /api/ledger",
    "GET /api/openapi.json",
    "GET /api/rooms/{room}",
    "GET /api/rooms/{room}/comments",
    "GET /assets/{file}",
    "GET /healthz",
    "GET /metrics",
    "GET /readyz",
    "GET /rooms/{room}",
    "GET /ws/{room}",
    "POST /api/rooms/{room}/comments",
];

async fn description(server: &Server) -> Value {
    let (status, description) = server.get("/api/openapi.json").await;
    assert_eq!(status, 200);
    description
}

/// The schemas that an answer may have; references are followed.
fn schemas(description: &Value, path: &str, method: &str, status: &str) -> Vec<Value> {
    let responses = &description["paths"][path][method]["responses"];
    let schema = &responses[status]["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path} does not describe its {status}: {responses}");
    let follow = |schema: &Value| match schema["$ref"].as_str() {
        Some(name) => description.pointer(name.trim_start_matches('#')).expect("the reference leads somewhere").clone(),
        None => schema.clone(),
    };
    let schema = follow(schema);
    match schema["oneOf"].as_array() {
        Some(shapes) => shapes.iter().map(follow).collect(),
        None => vec![schema],
    }
}

fn is_of(answer: &Map<String, Value>, schema: &Value) -> bool {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    required.iter().all(|name| answer.contains_key(name.as_str().unwrap_or_default()))
        && answer.keys().all(|name| properties.contains_key(name))
}

#[tokio::test]
async fn the_description_names_every_address_and_each_answers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let description = description(&server).await;
    let mut named = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let address = path.replace("{room}", "r1").replace("{file}", "app.js");
            let (status, _, body) = server.request(&method, &address, r#"{"text":"x"}"#).await;
            assert!(![404, 405, 500].contains(&status), "{method} {path}: {status} {body}");
            let described = &methods[method.to_lowercase()]["responses"];
            assert!(described.get(status.to_string()).is_some(), "{method} {path} does not describe its {status}");
            named.insert(format!("{method} {path}"));
        }
    }
    assert_eq!(named, BTreeSet::from(ROUTES.map(str::to_owned)));
}

#[tokio::test]
async fn answers_have_the_shape_that_the_description_gives_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[limits]\nmin_interval = \"1h\"\nburst = 1").run();
    let description = description(&server).await;
    let (path, guest) = ("/api/rooms/{room}/comments", "guest=0123456789abcdef");
    let (posted, accepted) = server.post("r1", guest, &json!({"text": "x", "ack": "stored"})).await;
    let (limited, refusal) = server.post("r1", guest, &json!({"text": "x"})).await;
    let (bad, mistake) = server.get("/api/rooms/r1/comments?limit=0").await;
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    let (_, page) = server.get("/api/rooms/r1/comments").await;
    assert_eq!((posted, limited, bad), (201, 429, 400));
    let table = [
        (&accepted, "post", "201"),
        (&refusal, "post", "429"),
        (&mistake, "get", "400"),
        (&window, "get", "200"),
        (&page, "get", "200"),
    ];
    for (answer, method, status) in table {
        let schemas = schemas(&description, path, method, status);
        let fits = schemas.iter().filter(|schema| is_of(answer.as_object().unwrap(), schema)).count();
        assert_eq!(fits, 1, "{answer} is not as described: {schemas:?}");
    }
    let comment = description.pointer("/components/schemas/Comment").expect("it is described");
    assert!(is_of(window["comments"][0].as_object().unwrap(), comment), "{window} {comment}");
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
}

#[tokio::test]
async fn every_metric_that_is_declared_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let source = include_str!("../../src/metrics.rs");
    let declared: Vec<_> = source
        .lines()
        .filter_map(|line| line.trim().strip_suffix("\";")?.split_once(" = \"").filter(|(left, _)| left.contains(": ")))
        .map(|(_, name)| format!("danmaku_{name}"))
        .collect();
    assert!(declared.len() > 20, "{declared:?}");
    let (status, head, text) = server.request("GET", "/metrics", "").await;
    assert!(status == 200 && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    for name in declared {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} is not shown");
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
        assert!(text.lines().any(|line| line.starts_with(&name)), "{name} has no value:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn metrics_count_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let mut viewers = Vec::new();
    for _ in 0..3 {
        viewers.push(Viewer::join(server.address, "r1", "").await);
    }
    for number in 0..10 {
        let text = number.to_string();
        viewers[0].say(&text, &text, "stored").await;
    }
    viewers[0].say("bad", " ", "stored").await;
    for viewer in &mut viewers[1..] {
        viewer.texts_until("9").await;
    }
    until("all are delivered to all", async || server.metric("danmaku_deliveries_total").await == 30).await;
    for (name, value) in [
        ("danmaku_accepted_total", 10),
        ("danmaku_stored_total", 10),
        ("danmaku_unsettled", 0),
        ("danmaku_queued", 0),
        ("danmaku_refused_total{code=\"text_blank\"}", 1),
        ("danmaku_viewers", 3),
        ("danmaku_rooms", 1),
        ("danmaku_sessions_begun_total", 3),
        ("danmaku_missed_total", 0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
}

#[tokio::test]
async fn the_page_and_its_files_are_there_and_safe() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let table = [
        ("/", "text/html", true),
        ("/rooms/r1", "text/html", true),
        ("/assets/app.js", "text/javascript", true),
        ("/assets/style.css", "text/css", true),
        ("/api/rooms/r1/comments", "application/json", false),
        ("/api/openapi.json", "application/json", false),
        ("/healthz", "text/plain", false),
        ("/nothing", "application/json", false),
    ];
    for (path, kind, is_page) in table {
        let (_, head, body) = server.request("GET", path, "").await;
        assert!(head.contains(&format!("content-type: {kind}")) && !body.is_empty(), "{path}: {head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
        if is_page {
            let policy = head.split("content-security-policy: ").nth(1).unwrap_or_default();
            let policy = policy.split('\r').next().unwrap_or_default();
            assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {head}");
        }
    }
    until("it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
}

#[tokio::test]
async fn the_readme_has_every_code_and_the_list_every_problem() {
    let readme = include_str!("../../README.md");
    let closes = CloseReason::ALL.map(CloseReason::word);
    for code in Refusal::CODES.iter().chain(&CODES).chain(&closes) {
        assert!(readme.contains(&format!("`{code}`")), "the README does not know {code}");
    }
    for reason in CloseReason::ALL {
        assert!(readme.contains(&format!("| {} | `{}`", reason.code(), reason.word())), "{reason:?}");
    }
    // What stands right after a status in the source is the code of a problem.
    let mut found = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/server")).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for after in source.split("StatusCode::").skip(1) {
            let after = after.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_');
            let Some(code) = after.strip_prefix(", \"").and_then(|rest| rest.split('"').next()) else { continue };
            assert!(CODES.contains(&code) || Refusal::CODES.contains(&code), "{code} is on no list");
            found += 1;
        }
    }
    assert!(found >= 9, "only {found} were found");
}

#[tokio::test]
async fn the_description_has_every_refusal_that_can_come_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    for (path, methods) in description(&server).await["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for (status, code) in [
                ("408", "timeout"),
                ("503", "too_many_connections"),
                ("503", "too_many_from_address"),
                ("503", "too_many_handshakes"),
            ] {
                let told = operation["responses"][status]["description"].as_str().unwrap_or_default();
                assert_eq!(told.matches(&format!("`{code}`")).count(), 1, "{method} {path}, {status} {code}: {told:?}");
                let shape = &operation["responses"][status]["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(shape, "#/components/schemas/Error", "{method} {path} {status}");
            }
        }
    }
}
