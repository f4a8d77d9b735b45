//! Who may do what, as it is configured.

use std::path::PathBuf;

use hyper::Uri;

use super::ConfigError;
use super::judge::{DAY, SECOND};
use super::layers::Merged;
use crate::auth::rules::{Anonymous, Policy};
use crate::auth::{AuthConfig, KeySource, LEAST_SECRET};

pub(super) fn judge(merged: &Merged) -> Result<AuthConfig, ConfigError> {
    let raw = &merged.raw.auth;
    let anonymous = match raw.anonymous.as_str() {
        "send" => Anonymous::Send,
        "read" => Anonymous::Read,
        "none" => Anonymous::None,
        other => {
            let problem = format!("{other:?} is not \"send\", \"read\" or \"none\"");
            return Err(merged.refuse("auth.anonymous", problem));
        }
    };
    let source = source(merged)?;
    if source == KeySource::Nowhere && anonymous == Anonymous::None {
        let problem = "keeps everybody out, for without auth.secret or auth.keys several nodes take no tokens";
        return Err(merged.refuse("auth.anonymous", problem));
    }
    let is_configured = !matches!(source, KeySource::Nowhere | KeySource::DataFolder(_));
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Ok(AuthConfig {
        issuer: given(&raw.issuer),
        audience: given(&raw.audience),
        leeway: merged.time("auth.leeway", &raw.leeway, std::time::Duration::ZERO, 300 * SECOND)?,
        refresh: merged.time("auth.refresh", &raw.refresh, SECOND, DAY)?,
        // Who has set no keys has nobody who could show a token.
        policy: Policy { anonymous, is_operation_open: raw.open_metrics || !is_configured },
        source,
    })
}

fn source(merged: &Merged) -> Result<KeySource, ConfigError> {
    let raw = &merged.raw.auth;
    if !raw.secret.is_empty() && !raw.keys.is_empty() {
        return Err(merged.refuse_pair("auth.secret", "auth.keys", "is set beside auth.keys; set one of them"));
    }
    if !raw.secret.is_empty() {
        if raw.secret.lines().any(|line| line.trim().len() < LEAST_SECRET) {
            let problem =
                format!("is not a secret of at least {LEAST_SECRET} bytes, such as `openssl rand -hex 32` makes");
            return Err(merged.refuse("auth.secret", problem));
        }
        return Ok(KeySource::Secret(raw.secret.clone()));
    }
    if raw.keys.contains("://") {
        return address(&raw.keys).map(KeySource::Address).map_err(|problem| merged.refuse("auth.keys", problem));
    }
    if !raw.keys.is_empty() {
        return Ok(KeySource::File(PathBuf::from(&raw.keys)));
    }
    // A secret that each node makes for itself is none that they have in common.
    let is_alone = merged.raw.redis.url.is_empty();
    Ok(if is_alone { KeySource::DataFolder(merged.raw.data_dir.clone().into()) } else { KeySource::Nowhere })
}

/// Reads an address; nothing of it is repeated, for it may hold a password.
fn address(raw: &str) -> Result<Uri, &'static str> {
    let address: Uri = raw.parse().map_err(|_| "is not an address such as https://id.example.com/keys.json")?;
    if !matches!(address.scheme_str(), Some("https" | "http")) {
        return Err("does not begin with https:// or http://, and is not the path of a file");
    }
    let has_user = address.authority().is_none_or(|authority| authority.as_str().contains('@'));
    if has_user { Err("has a user name in it; public keys need none") } else { Ok(address) }
}
