//! Keys: what a text holds, be it secrets, PEM or a JWKS. Each key is for one algorithm, whatever a token says of itself.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use serde::Deserialize;
use thiserror::Error;

use super::crypto;

/// The shortest secret, in bytes: as long as the hash (RFC 7518, 3.2).
pub const LEAST_SECRET: usize = 32;

/// Most keys that one source may have; a token without a `kid` is tried with each of its algorithm.
const MOST_KEYS: usize = 64;

/// The shortest and longest RSA modulus, in bytes: what `RSA_PKCS1_2048_8192_SHA256` takes.
const MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;

/// An uncompressed point of P-256, in bytes (SEC 1, 2.3.3).
const P256_POINT: usize = 65;

/// A public key of Ed25519, in bytes.
const ED25519_KEY: usize = 32;

/// Why a text is no source of keys. Nothing of the text is repeated.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// It has none.
    #[error("it holds no key")]
    Empty,
    /// It has too many.
    #[error("it holds more than {MOST_KEYS} keys")]
    TooMany,
    /// A secret is too short.
    #[error("a secret has at least {LEAST_SECRET} bytes, one secret a line")]
    ShortSecret,
    /// A PEM block is not a key that we take.
    #[error(
        "a PEM block is a public key, or a private one in PKCS#8 (`openssl pkcs8 -topk8 -nocrypt`), of RSA with 2048 \
         to 8192 bits, P-256 or Ed25519; a certificate is none"
    )]
    Pem,
    /// It looks like JSON and is no JWKS.
    #[error("it is not a JSON Web Key Set, {{\"keys\":[…]}}")]
    Jwks,
    /// No key of a JWKS is one that we take.
    #[error(
        "none of its keys can be used: they are RSA with 2048 to 8192 bits (RS256), P-256 (ES256), Ed25519 (EdDSA), or, \
         in a file, secrets of at least {LEAST_SECRET} bytes (HS256)"
    )]
    NoneFits,
}

/// Where a text came from: an address gives public keys only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Local,
    Remote,
}

/// A key, with the one algorithm that it is for.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) verifies: DecodingKey,
    pub(super) signs: Option<EncodingKey>,
}

/// The keys that tokens are checked with.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Key>);

#[derive(Deserialize)]
struct Jwks {
    // Read one by one, so that a key of a kind that nobody knows yet does not cost the others.
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads keys. What they are the text itself tells: a JWKS begins with a brace, PEM has its own line, and anything
    /// else is secrets, one a line.
    pub(super) fn parse(text: &str, origin: Origin) -> Result<Self, KeyError> {
        crypto::install();
        let text = text.trim();
        let keys = if text.starts_with('{') || origin == Origin::Remote {
            jwks(text, origin)?
        } else if text.contains(BEGIN) {
            text.split(BEGIN).skip(1).map(|block| pem(&format!("{BEGIN}{block}"))).collect::<Result<_, _>>()?
        } else {
            return Self::secrets(text);
        };
        Self::of(keys)
    }

    /// Reads secrets, one a line; the first one is what tokens are made with.
    pub(super) fn secrets(text: &str) -> Result<Self, KeyError> {
        crypto::install();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Self::of(lines.map(secret).collect::<Result<_, _>>()?)
    }

    fn of(keys: Vec<Key>) -> Result<Self, KeyError> {
        match keys.len() {
            0 => Err(KeyError::Empty),
            1..=MOST_KEYS => Ok(Self(keys)),
            _ => Err(KeyError::TooMany),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that a token which names this one may be signed with.
    pub(super) fn named<'a>(&'a self, id: Option<&'a str>) -> impl Iterator<Item = &'a Key> {
        let fits = move |key: &&Key| id.is_none() || key.id.is_none() || key.id.as_deref() == id;
        self.0.iter().filter(fits)
    }

    /// The first key that tokens can be made with.
    pub(super) fn signing(&self) -> Option<(&EncodingKey, &Key)> {
        self.0.iter().find_map(|key| key.signs.as_ref().map(|signs| (signs, key)))
    }
}

impl Key {
    /// What stands in the head of a token made with it.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }
}

fn secret(secret: &str) -> Result<Key, KeyError> {
    if secret.len() < LEAST_SECRET {
        return Err(KeyError::ShortSecret);
    }
    let bytes = secret.as_bytes();
    let verifies = DecodingKey::from_secret(bytes).map_err(|_| KeyError::ShortSecret)?;
    let signs = EncodingKey::from_secret(bytes).ok();
    Ok(Key { id: None, algorithm: Algorithm::HS256, verifies, signs })
}

const BEGIN: &str = "-----BEGIN ";

fn pem(block: &str) -> Result<Key, KeyError> {
    let (tag, pem) = (block.lines().next().unwrap_or_default(), block.as_bytes());
    if tag.contains("CERTIFICATE") {
        return Err(KeyError::Pem);
    }
    let key = if tag.contains("PRIVATE") {
        let kinds = [
            (Algorithm::RS256, EncodingKey::from_rsa_pem(pem)),
            (Algorithm::ES256, EncodingKey::from_ec_pem(pem)),
            (Algorithm::EdDSA, EncodingKey::from_ed_pem(pem)),
        ];
        kinds.into_iter().find_map(|(algorithm, key)| {
            let signs = key.ok()?;
            let verifies = crypto::public_half(algorithm, &signs)?;
            Some(Key { id: None, algorithm, verifies, signs: Some(signs) })
        })
    } else {
        let kinds = [
            (Algorithm::RS256, DecodingKey::from_rsa_pem(pem)),
            (Algorithm::ES256, DecodingKey::from_ec_pem(pem)),
            (Algorithm::EdDSA, DecodingKey::from_ed_pem(pem)),
        ];
        kinds
            .into_iter()
            .find_map(|(algorithm, key)| Some(Key { id: None, algorithm, verifies: key.ok()?, signs: None }))
    };
    key.filter(is_usable).ok_or(KeyError::Pem)
}

fn jwks(text: &str, origin: Origin) -> Result<Vec<Key>, KeyError> {
    let Jwks { keys } = serde_json::from_str(text).map_err(|_| KeyError::Jwks)?;
    if keys.len() > MOST_KEYS {
        return Err(KeyError::TooMany);
    }
    let keys: Vec<_> = keys.into_iter().filter_map(|key| jwk(&serde_json::from_value(key).ok()?, origin)).collect();
    if keys.is_empty() { Err(KeyError::NoneFits) } else { Ok(keys) }
}

fn jwk(jwk: &Jwk, origin: Origin) -> Option<Key> {
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        // A secret that an address gives to whoever asks is none.
        AlgorithmParameters::OctetKey(_) if origin == Origin::Local => (Algorithm::HS256, KeyAlgorithm::HS256),
        _ => return None,
    };
    let is_for_this = jwk.common.key_algorithm.is_none_or(|algorithm| algorithm == named);
    let is_for_signing = !matches!(&jwk.common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature);
    let signs = match &jwk.algorithm {
        AlgorithmParameters::OctetKey(key) => EncodingKey::from_urlsafe_base64_secret(&padded(&key.value)).ok(),
        _ => None,
    };
    let verifies = DecodingKey::from_jwk(jwk).ok()?;
    let key = Key { id: jwk.common.key_id.clone(), algorithm, verifies, signs };
    (is_for_this && is_for_signing && is_usable(&key)).then_some(key)
}

/// Base64 as RFC 4648 has it, of what a JWK has without its padding.
fn padded(value: &str) -> String {
    format!("{value}{}", "=".repeat(value.len().wrapping_neg() % 4))
}

/// Whether tokens can be checked with it at all: a key of another size would refuse every one, in silence.
fn is_usable(key: &Key) -> bool {
    match (key.algorithm, key.verifies.kind()) {
        (Algorithm::HS256, DecodingKeyKind::SecretOrDer(secret)) => secret.len() >= LEAST_SECRET,
        (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, .. }) => MODULUS.contains(&n.len()),
        // The modulus and some bytes around it.
        (Algorithm::RS256, DecodingKeyKind::SecretOrDer(der)) => der.len() > *MODULUS.start(),
        (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => point.len() == P256_POINT,
        (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(key)) => key.len() == ED25519_KEY,
        _ => false,
    }
}
