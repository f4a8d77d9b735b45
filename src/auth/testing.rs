//! Keys and tokens for tests.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::rules::{Anonymous, Policy};
use super::{AuthConfig, Authenticator, KeySource};
use crate::clock::Clock;
use crate::model::Timestamp;

/// Now, in seconds.
pub(super) const NOW: i64 = 1_800_000_000;

pub(super) const SECRET: &str = "a secret that is as long as it has to be";

/// With keys from here and nothing else out of the ordinary.
pub(super) fn config(source: KeySource) -> AuthConfig {
    AuthConfig {
        source,
        issuer: None,
        audience: None,
        leeway: std::time::Duration::from_secs(5),
        refresh: std::time::Duration::from_secs(300),
        policy: Policy { anonymous: Anonymous::Send, is_operation_open: true },
    }
}

pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_millis(NOW * 1000))
}

pub(super) async fn open(config: AuthConfig) -> Authenticator {
    Authenticator::open(config, clock()).await.expect("the keys are right").0
}

pub(super) async fn with_secret() -> Authenticator {
    open(config(KeySource::Secret(SECRET.into()))).await
}

/// Claims that are taken, and these besides.
pub(super) fn claims(more: &Value) -> Value {
    let mut claims = json!({"sub": "u1", "exp": NOW + 60});
    let own = claims.as_object_mut().expect("it is one");
    own.extend(more.as_object().expect("it is one too").clone());
    claims
}

/// Head and claims of a token, not signed yet.
pub(super) fn unsigned(head: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(head), part(claims))
}

/// A token of a secret, whatever its head says.
pub(super) fn signed_with(secret: &[u8], head: &Value, claims: &Value) -> String {
    let text = unsigned(head, claims);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let signature = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, text.as_bytes()));
    format!("{text}.{signature}")
}

/// A token of [`SECRET`] with these claims besides.
pub(super) fn token(more: &Value) -> String {
    signed_with(SECRET.as_bytes(), &json!({"alg": "HS256", "typ": "JWT"}), &claims(more))
}
