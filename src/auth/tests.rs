use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::rules::Standing;
use super::testing::*;
use super::*;
use crate::model::{Role, RoomId, Timestamp};

fn data(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/keys").join(folder);
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 3, "{files:?}");
    files
}

fn key(name: &str) -> PathBuf {
    data("taken").into_iter().find(|path| path.ends_with(name)).unwrap()
}

fn room(id: &str) -> RoomId {
    RoomId::parse(id).unwrap()
}

fn host_of(rooms: &[&str]) -> Grant {
    let rooms = rooms.iter().map(|id| room(id)).collect();
    Grant { uid: None, name: Some("Ann".into()), role: Role::Host, rooms, ttl: Duration::from_secs(60) }
}

async fn refusal(authenticator: &Authenticator, token: &str) -> (&'static str, String) {
    let error = authenticator.verify(token).await.expect_err(token);
    (error.code(), error.to_string())
}

#[tokio::test]
async fn a_token_gives_who_its_bearer_is_and_where() {
    let authenticator = with_secret().await;
    let given = json!({"uid": "u2", "name": "Ann", "role": "host", "rooms": ["r1", "r2"], "iat": NOW, "other": [1]});
    let pass = authenticator.verify(&token(&given)).await.unwrap();
    let here = pass.identity(&room("r1"), Some("Eve")).unwrap();
    assert_eq!((here.uid.as_str(), here.name.as_str(), here.role), ("u2", "Ann", Role::Host));
    assert_eq!(pass.identity(&room("r3"), None).unwrap().role, Role::Viewer, "a host of other rooms watches");
    assert_eq!(pass.expires_at(), Timestamp::from_millis((NOW + 65) * 1000), "the leeway is in it");
    assert_eq!(authenticator.time_left(&pass), Duration::from_secs(65));
    let plain = authenticator.verify(&token(&json!({}))).await.unwrap();
    let named = |wanted| plain.identity(&room("r1"), wanted).map(|who| who.name.as_str().to_owned());
    assert_eq!(named(Some("Bob")).unwrap(), "Bob", "it leaves the name to its bearer");
    assert_eq!((named(None).unwrap(), named(Some("")).unwrap()), ("u1".to_owned(), "u1".to_owned()));
    assert_eq!(named(Some("a\u{202e}b")).unwrap_err().code(), "bad_name");
}

#[tokio::test]
async fn a_role_holds_in_its_rooms_and_nowhere_else() {
    let authenticator = with_secret().await;
    let (own, other) = (room("r1"), room("r2"));
    use Standing::{Admin, Host, Moderator, Outsider, Viewer};
    let table = [
        (json!({}), [Viewer, Viewer, Viewer]),
        (json!({"role": "viewer", "rooms": ["r1"]}), [Viewer, Outsider, Viewer]),
        (json!({"role": "moderator", "rooms": ["r1"]}), [Moderator, Viewer, Viewer]),
        (json!({"role": "host", "rooms": ["r1"]}), [Host, Viewer, Viewer]),
        (json!({"role": "host"}), [Viewer, Viewer, Viewer]),
        (json!({"role": "admin"}), [Admin, Admin, Admin]),
        (json!({"role": "admin", "rooms": ["r1"]}), [Admin, Admin, Admin]),
    ];
    for (claims, expected) in table {
        let pass = authenticator.verify(&token(&claims)).await.unwrap();
        let standings = [Some(&own), Some(&other), None].map(|room| pass.standing(room));
        assert_eq!(standings, expected, "{claims}");
    }
}

#[tokio::test]
async fn claims_that_cannot_be_taken_are_refused() {
    let authenticator = with_secret().await;
    let bad = [
        json!({"exp": null}),
        json!({"exp": "1900000000"}),
        json!({"nbf": NOW + 6}),
        json!({"nbf": "soon"}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": 7}),
        json!({"sub": "a\nb"}),
        json!({"sub": "哈"}),
        json!({"sub": "u".repeat(129)}),
        json!({"sub": "g-0123456789abcdef"}),
        json!({"uid": "g-0123456789abcdef"}),
        json!({"role": "owner"}),
        json!({"role": ["admin"]}),
        json!({"rooms": "r1"}),
        json!({"rooms": ["a/b"]}),
        json!({"name": "a\u{202e}b"}),
    ];
    for more in bad {
        assert_eq!(refusal(&authenticator, &token(&more)).await.0, "bad_token", "{more}");
    }
    for past in [json!(NOW - 5), json!(0), json!(-1), json!(-1e300), json!(NOW as f64 - 5.5)] {
        assert_eq!(refusal(&authenticator, &token(&json!({"exp": past}))).await.0, "token_expired", "{past}");
    }
    let good =
        [json!({"exp": NOW - 4}), json!({"exp": 1e300}), json!({"exp": NOW as f64 + 0.5}), json!({"nbf": NOW + 5})];
    for more in good {
        authenticator.verify(&token(&more)).await.unwrap_or_else(|error| panic!("{more}: {error}"));
    }
    let long = "名".repeat(30);
    let pass = authenticator.verify(&token(&json!({"name": long}))).await.unwrap();
    assert_eq!(pass.identity(&room("r1"), None).unwrap().name.as_str(), "名".repeat(20), "a long name is cut");
}

#[tokio::test]
async fn none_of_the_attacks_gets_in() {
    let authenticator = with_secret().await;
    let good = token(&json!({}));
    authenticator.verify(&good).await.unwrap();
    let [head, body, signature] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let admin = claims(&json!({"role": "admin"}));
    let none = |alg: &str| unsigned(&json!({"alg": alg}), &admin);
    let other_body = URL_SAFE_NO_PAD.encode(admin.to_string());
    let flipped = format!("{head}.{body}.{}{}", if signature.starts_with('A') { 'B' } else { 'A' }, &signature[1..]);
    let critical = json!({"alg": "HS256", "crit": ["x"], "x": 1});
    let own_key = json!({"alg": "HS256", "jwk": {"kty": "oct", "k": URL_SAFE_NO_PAD.encode("k".repeat(40))}});
    let table = [
        ("alg none", format!("{}.", none("none"))),
        ("alg none with a signature", format!("{}.{signature}", none("none"))),
        ("alg NONE", format!("{}.", none("NONE"))),
        ("no alg", format!("{}.", unsigned(&json!({}), &admin))),
        ("no signature", format!("{head}.{body}.")),
        ("two parts", format!("{head}.{body}")),
        ("four parts", format!("{good}.{signature}")),
        ("other claims under the same signature", format!("{head}.{other_body}.{signature}")),
        ("a flipped signature", flipped),
        ("another secret", signed_with(&[b'x'; 40], &json!({"alg": "HS256"}), &admin)),
        ("a longer hash", signed_with(SECRET.as_bytes(), &json!({"alg": "HS512"}), &admin)),
        ("another family", signed_with(SECRET.as_bytes(), &json!({"alg": "RS256"}), &admin)),
        ("its own key", signed_with("k".repeat(40).as_bytes(), &own_key, &admin)),
        ("a demand that nobody knows", signed_with(SECRET.as_bytes(), &critical, &admin)),
        ("a claim twice", {
            let text = format!("{head}.{}", URL_SAFE_NO_PAD.encode(r#"{"sub":"a","exp":1,"exp":1900000000}"#));
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
            format!("{text}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, text.as_bytes())))
        }),
        ("nothing", String::new()),
        ("dots", "..".into()),
        ("an oversized one", token(&json!({"padding": "x".repeat(4000)}))),
        ("with white space", format!(" {good}")),
    ];
    for (attack, token) in table {
        let (code, told) = refusal(&authenticator, &token).await;
        assert_eq!(code, "bad_token", "{attack}: {told}");
        assert!(token.len() < 20 || !told.contains(&token[..10]), "{attack}: {told}");
    }
}

#[tokio::test]
async fn a_public_key_is_no_secret() {
    for name in ["rsa.pub.pem", "ec.pub.pem", "ed.pub.pem"] {
        let authenticator = open(config(KeySource::File(key(name)))).await;
        let text = std::fs::read(key(name)).unwrap();
        for alg in ["HS256", "RS256", "ES256", "EdDSA"] {
            let forged = signed_with(&text, &json!({"alg": alg}), &claims(&json!({"role": "admin"})));
            assert_eq!(refusal(&authenticator, &forged).await.0, "bad_token", "{name} as {alg}");
        }
    }
}

#[tokio::test]
async fn each_kind_of_key_signs_and_checks_its_own_tokens_only() {
    let kinds = ["rsa", "ec", "ed"];
    let mut tokens = Vec::new();
    for kind in kinds {
        let with = config(KeySource::File(key(&format!("{kind}.pem"))));
        tokens.push(issue(&with, &clock(), &host_of(&["r1"])).unwrap());
        let authenticator = open(with).await;
        authenticator.verify(&tokens[tokens.len() - 1]).await.unwrap();
    }
    for (checks, kind) in kinds.iter().enumerate() {
        let public = config(KeySource::File(key(&format!("{kind}.pub.pem"))));
        assert!(issue(&public, &clock(), &host_of(&["r1"])).unwrap_err().to_string().contains("not made"));
        let authenticator = open(public).await;
        for (made, token) in tokens.iter().enumerate() {
            let verified = authenticator.verify(token).await;
            assert_eq!(verified.is_ok(), made == checks, "{kind}: {verified:?}");
            if let Ok(pass) = verified {
                assert_eq!(pass.standing(Some(&room("r1"))), Standing::Host);
                let [start, end] = [&token[..token.len() - 9], &token[token.len() - 8..]];
                assert_eq!(refusal(&authenticator, &format!("{start}A{end}")).await.0, "bad_token", "{kind}");
            }
        }
    }
}

#[tokio::test]
async fn keys_that_would_check_nothing_are_refused() {
    for path in data("refused") {
        let refused = Authenticator::open(config(KeySource::File(path.clone())), clock()).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("pem")), "{}", path.display());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    for text in ["", "\n", "short", "{", "{\"keys\":[]}", "{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2hvcnQ\"}]}"] {
        std::fs::write(&path, text).unwrap();
        let refused = Authenticator::open(config(KeySource::File(path.clone())), clock()).await;
        assert!(refused.is_err(), "{text:?}");
    }
    let missing = KeySource::File(folder.path().join("none"));
    assert!(Authenticator::open(config(missing), clock()).await.is_err());
}

#[tokio::test]
async fn issuer_and_audience_are_checked_when_they_are_configured() {
    let source = KeySource::Secret(SECRET.into());
    let strict =
        AuthConfig { issuer: Some("https://id".into()), audience: Some("danmaku".into()), ..config(source.clone()) };
    let (strict_one, free) = (open(strict.clone()).await, open(config(source)).await);
    let table = [
        (json!({"iss": "https://id", "aud": "danmaku"}), true),
        (json!({"iss": "https://id", "aud": ["mail", "danmaku"]}), true),
        (json!({"iss": "https://id", "aud": "mail"}), false),
        (json!({"iss": "https://id", "aud": 7}), false),
        (json!({"iss": "https://id"}), false),
        (json!({"iss": "https://other", "aud": "danmaku"}), false),
        (json!({"aud": "danmaku"}), false),
    ];
    for (more, is_taken) in table {
        assert_eq!(strict_one.verify(&token(&more)).await.is_ok(), is_taken, "{more}");
        free.verify(&token(&more)).await.unwrap_or_else(|error| panic!("{more}: {error}"));
    }
    let own = issue(&strict, &clock(), &host_of(&["r1"])).unwrap();
    strict_one.verify(&own).await.unwrap();
}

#[tokio::test]
async fn a_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let new_secret = "another secret, as long as the one before";
    std::fs::write(&path, SECRET).unwrap();
    let authenticator = open(config(KeySource::File(path.clone()))).await;
    let old = token(&json!({}));
    let new = signed_with(new_secret.as_bytes(), &json!({"alg": "HS256"}), &claims(&json!({})));
    let taken = async || [authenticator.verify(&old).await.is_ok(), authenticator.verify(&new).await.is_ok()];
    assert_eq!(taken().await, [true, false]);
    std::fs::write(&path, format!("{new_secret}\n{SECRET}\n")).unwrap();
    authenticator.refresh().await;
    assert_eq!(taken().await, [true, true], "both are good while both are there");
    for broken in ["", "short", "{\"keys\":"] {
        std::fs::write(&path, broken).unwrap();
        authenticator.refresh().await;
        assert_eq!(taken().await, [true, true], "{broken:?}");
    }
    std::fs::remove_file(&path).unwrap();
    authenticator.refresh().await;
    assert_eq!(taken().await, [true, true]);
    std::fs::write(&path, new_secret).unwrap();
    authenticator.refresh().await;
    assert_eq!(taken().await, [false, true]);
}

#[tokio::test]
async fn the_secret_of_a_data_folder_is_made_once_and_nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let with = config(KeySource::DataFolder(folder.path().to_owned()));
    assert!(matches!(issue(&with, &clock(), &host_of(&["r1"])), Err(IssueError::NoSecret(_))));
    let (first, is_new) = Authenticator::open(with.clone(), clock()).await.unwrap();
    assert!(is_new);
    let token = issue(&with, &clock(), &host_of(&["r1"])).unwrap();
    let (second, is_new) = Authenticator::open(with.clone(), clock()).await.unwrap();
    assert!(!is_new);
    first.verify(&token).await.unwrap();
    second.verify(&token).await.unwrap();
    let path = folder.path().join("auth-secret");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&path).unwrap().trim().len() == 64);
    assert!(matches!(issue(&with, &clock(), &host_of(&[])), Err(IssueError::NoRoom("host"))));
    let bad = Grant { uid: Some("a b".into()), ..host_of(&["r1"]) };
    assert!(matches!(issue(&with, &clock(), &bad), Err(IssueError::Claim(_))));
}

#[tokio::test]
async fn without_keys_no_token_is_taken() {
    let authenticator = open(config(KeySource::Nowhere)).await;
    assert_eq!(refusal(&authenticator, &token(&json!({}))).await.0, "bad_token");
}

/// Answers each connection with what it is told to, and counts them.
struct Issuer {
    address: String,
    answer: tokio::sync::watch::Sender<String>,
    asked: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Issuer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/keys.json", listener.local_addr().unwrap());
        let answer = tokio::sync::watch::Sender::new(String::new());
        let asked = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let (told, count) = (answer.subscribe(), asked.clone());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _head = stream.read(&mut [0; 1024]).await;
                let answer = told.borrow().clone();
                let _sent = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { address, answer, asked, task }
    }

    fn gives(&self, status: &str, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        self.answer.send_replace(answer);
    }

    fn asked(&self) -> usize {
        self.asked.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The JWKS of the EC and the Ed25519 key under these names, and keys that nobody can use.
fn jwks(names: &[(&str, &str)]) -> String {
    let last = |name: &str, bytes: usize| {
        let text = std::fs::read_to_string(key(name)).unwrap();
        let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        let der = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
        der[der.len() - bytes..].to_vec()
    };
    let (ec, ed) = (last("ec.pub.pem", 64), last("ed.pub.pem", 32));
    let mut keys = vec![
        json!({"kty": "oct", "kid": "secret", "k": URL_SAFE_NO_PAD.encode(SECRET)}),
        json!({"kty": "EC", "crv": "P-521", "kid": "new kind"}),
        json!({"kty": "EC", "crv": "P-256", "kid": "for others", "use": "enc",
            "x": URL_SAFE_NO_PAD.encode(&ec[..32]), "y": URL_SAFE_NO_PAD.encode(&ec[32..])}),
        json!("rubbish"),
    ];
    keys.extend(names.iter().map(|(kind, id)| match *kind {
        "ec" => json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(&ec[..32]), "y": URL_SAFE_NO_PAD.encode(&ec[32..])}),
        _ => json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": URL_SAFE_NO_PAD.encode(&ed)}),
    }));
    json!({"keys": keys}).to_string()
}

/// A token of a key of the tests, under a name.
fn named(kind: &str, id: &str, claims: &Value) -> String {
    let pem = std::fs::read(key(&format!("{kind}.pem"))).unwrap();
    let (algorithm, key) = match kind {
        "ec" => (jsonwebtoken::Algorithm::ES256, jsonwebtoken::EncodingKey::from_ec_pem(&pem)),
        _ => (jsonwebtoken::Algorithm::EdDSA, jsonwebtoken::EncodingKey::from_ed_pem(&pem)),
    };
    let head = jsonwebtoken::Header { kid: Some(id.into()), ..jsonwebtoken::Header::new(algorithm) };
    super::crypto::install();
    jsonwebtoken::encode(&head, claims, &key.unwrap()).unwrap()
}

#[tokio::test]
async fn keys_of_an_address_are_fetched_when_a_token_names_a_new_one_and_outlive_it() {
    let issuer = Issuer::start().await;
    issuer.gives("503 Later", "");
    // A gap of a second at least, of which the clock of the test jumps over.
    let with = AuthConfig {
        refresh: Duration::from_secs(3600),
        ..config(KeySource::Address(issuer.address.parse().unwrap()))
    };
    let authenticator = open(with).await;
    let (first, second) = (named("ec", "k1", &claims(&json!({}))), named("ed", "k2", &claims(&json!({}))));
    assert_eq!((issuer.asked(), refusal(&authenticator, &first).await.0), (1, "keys_unavailable"));
    assert_eq!(issuer.asked(), 1, "not again so soon");
    let later = async || {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        tokio::time::resume();
    };
    issuer.gives("200 OK", &jwks(&[("ec", "k1")]));
    later().await;
    authenticator.verify(&first).await.unwrap();
    assert_eq!(issuer.asked(), 2);
    assert_eq!(refusal(&authenticator, &second).await.0, "bad_token");
    issuer.gives("200 OK", &jwks(&[("ec", "k1"), ("ed", "k2")]));
    later().await;
    authenticator.verify(&second).await.unwrap();
    assert_eq!(issuer.asked(), 3);
    for n in 0..50 {
        let flood = named("ed", &format!("k{n}x"), &claims(&json!({})));
        assert_eq!(refusal(&authenticator, &flood).await.0, "bad_token");
    }
    assert_eq!(issuer.asked(), 3, "a flood of unknown keys is none at the issuer");
    for (status, body) in
        [("500 No", ""), ("200 OK", "{\"keys\":[]}"), ("200 OK", &"x".repeat(300_000)), ("302 Go", "")]
    {
        issuer.gives(status, body);
        later().await;
        assert_eq!(refusal(&authenticator, &named("ed", "k9", &claims(&json!({})))).await.0, "bad_token");
        authenticator.verify(&first).await.unwrap();
    }
    assert_eq!(issuer.asked(), 7);
    issuer.gives("200 OK", &jwks(&[("ed", "k2")]));
    later().await;
    assert_eq!(refusal(&authenticator, &named("ed", "k9", &claims(&json!({})))).await.0, "bad_token");
    assert_eq!(refusal(&authenticator, &first).await.1, "the token is refused: its key is not known");
    let of_secret = signed_with(SECRET.as_bytes(), &json!({"alg": "HS256", "kid": "secret"}), &claims(&json!({})));
    assert_eq!(refusal(&authenticator, &of_secret).await.0, "bad_token", "an address gives no secrets");
    let of_other_use = named("ec", "for others", &claims(&json!({})));
    assert_eq!(refusal(&authenticator, &of_other_use).await.0, "bad_token");
}

#[tokio::test]
async fn keys_of_a_jwks_file_are_told_apart_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    std::fs::write(&path, jwks(&[("ec", "k1"), ("ed", "k2")])).unwrap();
    let with = config(KeySource::File(path));
    let authenticator = open(with.clone()).await;
    authenticator.verify(&named("ec", "k1", &claims(&json!({})))).await.unwrap();
    authenticator.verify(&named("ed", "k2", &claims(&json!({})))).await.unwrap();
    assert_eq!(refusal(&authenticator, &named("ed", "k1", &claims(&json!({})))).await.0, "bad_token");
    // Its own secret is in the file, so tokens can be made with it.
    let own = issue(&with, &clock(), &host_of(&["r1"])).unwrap();
    authenticator.verify(&own).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_text_is_more_than_refused(
        parts in prop::collection::vec(prop_oneof![
            ".{0,60}",
            prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| URL_SAFE_NO_PAD.encode(bytes)),
            prop::sample::select(vec![
                r#"{"alg":"HS256"}"#, r#"{"alg":"none"}"#, r#"{"alg":"EdDSA","kid":"k"}"#, r#"{"sub":"a","exp":1e999}"#,
                r#"{"alg":"HS256","crit":["b64"]}"#, "[[[[", r#"{"exp":-0.0,"nbf":1e308,"sub":"\ud800"}"#,
            ]).prop_map(|text| URL_SAFE_NO_PAD.encode(text)),
        ], 0..5),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(async { with_secret().await.verify(&parts.join(".")).await });
        prop_assert_eq!(refused.unwrap_err().code(), "bad_token");
    }

    #[test]
    fn no_claims_under_a_right_signature_do_more_than_they_say(
        exp in time(), nbf in time(), uid in prop_oneof!["[!-~]{1,20}", ".{0,140}"], name in ".{0,40}",
        role in prop_oneof![4 => prop::sample::select(Role::ALL.map(Role::as_str).to_vec()).prop_map(str::to_owned),
            1 => "[a-z]{0,9}"],
        rooms in prop::collection::vec(prop_oneof![8 => "[a-z]{1,3}", 1 => ".{0,5}"], 0..3),
    ) {
        let signed = token(&json!({"exp": exp, "nbf": nbf, "uid": uid, "name": name, "role": role, "rooms": rooms}));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        match runtime.block_on(async { with_secret().await.verify(&signed).await }) {
            Ok(pass) => {
                let (own, other) = (rooms.first().map(|id| room(id)), room("another"));
                prop_assert!(pass.expires_at() > clock().now());
                prop_assert_eq!(pass.standing(Some(&other)) == Standing::Admin, role == "admin");
                prop_assert_eq!(pass.standing(own.as_ref()) == Standing::Host, role == "host" && own.is_some());
                let who = pass.identity(&other, None).unwrap();
                prop_assert_eq!(who.uid.as_str(), uid);
            }
            Err(error) => prop_assert!(["bad_token", "token_expired"].contains(&error.code())),
        }
    }
}

/// A time around now, or none that anybody means.
fn time() -> impl Strategy<Value = f64> {
    prop_oneof![6 => (NOW - 100..NOW + 100).prop_map(|secs| secs as f64), 1 => any::<f64>()]
}
