//! Checks tokens, and keeps the keys that it does so with up to date.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper::Uri;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::claims::{Claims, Pass};
use super::fetch::Fetcher;
use super::keys::{Key, KeySet, Origin};
use super::rules::Policy;
use super::source::{self, SourceError};
use super::{AuthConfig, AuthError, KeySource};
use crate::clock::Clock;
use crate::shutdown::Shutdown;

/// The longest token, in bytes. With it the head of a request still has room for the rest.
pub const MAX_TOKEN: usize = 4096;

/// How often a file of keys is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The least time between two fetches, whoever asks for them: a flood of tokens with keys that nobody knows must not
/// become a flood at the issuer.
const LEAST_GAP: Duration = Duration::from_secs(10);

/// How soon keys are fetched again while there are none.
const WITHOUT_KEYS: Duration = Duration::from_secs(10);

/// Checks tokens. Clones share the keys.
#[derive(Clone, Debug)]
pub struct Authenticator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: AuthConfig,
    clock: Clock,
    keys: RwLock<Arc<KeySet>>,
    origin: Source,
}

/// What is asked for keys again and again.
#[derive(Debug)]
enum Source {
    Fixed,
    /// With what it had when it was looked at last, fit for keys or not.
    File(PathBuf, Mutex<String>),
    /// With when it was asked last.
    Address(Uri, Box<Fetcher>, Mutex<Option<Instant>>),
}

/// Why a token gives no pass.
enum Fault {
    /// It is signed with a key that is not here; it may be a new one.
    UnknownKey,
    Refused(AuthError),
}

impl From<AuthError> for Fault {
    fn from(error: AuthError) -> Self {
        Self::Refused(error)
    }
}

impl Authenticator {
    /// Gets the keys. True beside it when their secret was made just now. Keys that an address does not give come later:
    /// only tokens need them.
    ///
    /// # Errors
    /// [`SourceError`] when a secret or a file is not what it should be.
    pub async fn open(config: AuthConfig, clock: Clock) -> Result<(Self, bool), SourceError> {
        let mut is_new = false;
        let (keys, origin) = match &config.source {
            KeySource::Nowhere => (KeySet::default(), Source::Fixed),
            KeySource::Secret(secret) => {
                let place = "auth.secret".to_owned();
                let keys = KeySet::secrets(secret);
                (keys.map_err(|problem| SourceError::Keys { place, problem })?, Source::Fixed)
            }
            KeySource::File(path) => from_file(path)?,
            KeySource::DataFolder(dir) => {
                is_new = source::make_secret(dir)?;
                from_file(&source::secret_file(dir))?
            }
            KeySource::Address(address) => {
                if address.scheme_str() == Some("http") {
                    warn!(%address, "keys come unencrypted: whoever is in between can make tokens of his own");
                }
                let failed = |problem| SourceError::Fetch { address: address.to_string(), problem };
                let fetcher = Box::new(Fetcher::new().map_err(failed)?);
                (KeySet::default(), Source::Address(address.clone(), fetcher, Mutex::default()))
            }
        };
        let authenticator =
            Self { inner: Arc::new(Inner { config, clock, keys: RwLock::new(Arc::new(keys)), origin }) };
        authenticator.refresh().await;
        Ok((authenticator, is_new))
    }

    /// What of the table of rules is configured.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.inner.config.policy
    }

    /// How long from now a pass is good.
    #[must_use]
    pub fn time_left(&self, pass: &Pass) -> Duration {
        let left = pass.expires_at().millis().saturating_sub(self.inner.clock.now().millis());
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    /// Checks a token. One of a key that is not known has them fetched, at most once in ten seconds.
    ///
    /// # Errors
    /// [`AuthError::Token`], [`AuthError::Expired`], or [`AuthError::NoKeys`] when it may be good later.
    pub async fn verify(&self, token: &str) -> Result<Pass, AuthError> {
        // Before anything is done with it.
        if token.len() > MAX_TOKEN {
            return Err(AuthError::Token("it is longer than 4096 bytes"));
        }
        let mut checked = self.check(token);
        if matches!((&checked, &self.inner.origin), (Err(Fault::UnknownKey), Source::Address(..))) {
            self.refresh().await;
            checked = self.check(token);
        }
        checked.map_err(|fault| match fault {
            Fault::Refused(error) => error,
            Fault::UnknownKey if !self.keys().is_empty() => AuthError::Token("its key is not known"),
            Fault::UnknownKey if matches!(self.inner.origin, Source::Fixed) => {
                AuthError::Token("this server knows guests only and takes no tokens")
            }
            Fault::UnknownKey => AuthError::NoKeys,
        })
    }

    fn check(&self, token: &str) -> Result<Pass, Fault> {
        let keys = self.keys();
        if keys.is_empty() {
            return Err(Fault::UnknownKey);
        }
        let head = decode_header(token).map_err(|_| AuthError::Token("it is not a signed token of a known kind"))?;
        let mut named = keys.named(head.kid.as_deref()).peekable();
        if named.peek().is_none() {
            return Err(Fault::UnknownKey);
        }
        let mut refusal = AuthError::Token("its algorithm is not that of its key");
        for key in named.filter(|key| key.algorithm == head.alg) {
            match self.check_with(key, token) {
                Err(AuthError::Token(WRONG_SIGNATURE)) => refusal = AuthError::Token(WRONG_SIGNATURE),
                checked => return Ok(checked?),
            }
        }
        Err(refusal.into())
    }

    fn check_with(&self, key: &Key, token: &str) -> Result<Pass, AuthError> {
        let Inner { config, clock, .. } = &*self.inner;
        // Made for the key, so that the token has no say in it.
        let mut validation = Validation::new(key.algorithm);
        // By our own clock, in what follows.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        validation.required_spec_claims.clear();
        validation.validate_aud = config.audience.is_some();
        if let Some(audience) = &config.audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        let decoded = decode::<Claims>(token, &key.verifies, &validation).map_err(|error| told(error.kind()))?;
        decoded.claims.take(clock.now(), config.leeway)
    }

    fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.inner.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, keys: KeySet) {
        *self.inner.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Keeps the keys up to date until the shutdown begins.
    pub async fn run(self, shutdown: Shutdown) {
        loop {
            let pause = match &self.inner.origin {
                Source::Fixed => return,
                Source::File(..) => LOOK,
                Source::Address(..) if self.keys().is_empty() => WITHOUT_KEYS.min(self.inner.config.refresh),
                Source::Address(..) => self.inner.config.refresh,
            };
            tokio::select! {
                biased; // a stop goes before work
                _ = shutdown.begun() => return,
                () = sleep(pause) => self.refresh().await,
            }
        }
    }

    /// Gets the keys anew, if they are not the same. What cannot be read or used leaves those that are there.
    pub(super) async fn refresh(&self) {
        match &self.inner.origin {
            Source::Fixed => {}
            Source::File(path, seen) => self.look(path, &mut *seen.lock().await).await,
            Source::Address(address, fetcher, asked) => {
                let mut asked = asked.lock().await;
                // Who waited for another one's fetch has its result.
                if asked.is_some_and(|asked| asked.elapsed() < LEAST_GAP.min(self.inner.config.refresh)) {
                    return;
                }
                let fetched = fetcher.get(address).await;
                *asked = Some(Instant::now());
                match fetched
                    .and_then(|text| KeySet::parse(&text, Origin::Remote).map_err(|problem| problem.to_string()))
                {
                    Ok(keys) => self.set(keys),
                    Err(problem) => warn!(%address, problem, "the keys stay as they are"),
                }
            }
        }
    }

    /// Looks whether a file has other keys.
    async fn look(&self, path: &Path, seen: &mut String) {
        let read = {
            let path = path.to_owned();
            tokio::task::spawn_blocking(move || (std::fs::read_to_string(&path).unwrap_or_default(), path)).await
        };
        let Ok((text, path)) = read else { return };
        if text == *seen {
            return;
        }
        match source::read(&path) {
            Ok((_, keys)) => {
                info!(path = %path.display(), "the keys have changed");
                self.set(keys);
            }
            Err(error) => warn!(%error, "the keys stay as they are"),
        }
        *seen = text;
    }
}

fn from_file(path: &Path) -> Result<(KeySet, Source), SourceError> {
    let (text, keys) = source::read(path)?;
    if keys.signing().is_some() {
        source::tell_if_readable_by_others(path);
    }
    Ok((keys, Source::File(path.to_owned(), Mutex::new(text))))
}

/// The one refusal after which another key may do.
const WRONG_SIGNATURE: &str = "its signature is wrong";

/// What the library found, in words that repeat nothing of the token.
fn told(kind: &ErrorKind) -> AuthError {
    AuthError::Token(match kind {
        ErrorKind::InvalidSignature => WRONG_SIGNATURE,
        ErrorKind::InvalidAlgorithm => "its algorithm is not that of its key",
        ErrorKind::InvalidIssuer => "its issuer is another",
        ErrorKind::InvalidAudience => "it is for another audience",
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => "it has no audience",
        ErrorKind::MissingRequiredClaim(_) => "it has no issuer",
        ErrorKind::Json(_) => "its claims cannot be read",
        _ => "it cannot be read",
    })
}
