//! The cryptography under the tokens: `ring`, which TLS brings along anyway, given to the token library.
//!
//! One algorithm for each kind of key and no others. The library has no provider of its own for `ring`; the two that it
//! offers would add a second cryptographic library to the binary.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::error::Unspecified;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};

/// Every algorithm that a token may be signed with.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::HS256, Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    // For making JWKs, which we only read.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Gives `ring` to the library, which has one provider for the whole process; calling it again changes nothing.
pub(super) fn install() {
    let _is_there_already = PROVIDER.install_default();
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    fits(*algorithm, key.family() == algorithm.family())?;
    Ok(Box::new(Ring { algorithm: *algorithm, key: key.clone() }))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    fits(*algorithm, key.family() == algorithm.family())?;
    Ok(Box::new(Ring { algorithm: *algorithm, key: key.clone() }))
}

fn fits(algorithm: Algorithm, is_family: bool) -> Result<()> {
    let is_taken = is_family && ALGORITHMS.contains(&algorithm);
    is_taken.then_some(()).ok_or_else(|| new_error(ErrorKind::InvalidAlgorithm))
}

/// A key with the algorithm that it is for.
struct Ring<K> {
    algorithm: Algorithm,
    key: K,
}

impl JwtVerifier for Ring<DecodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Ring<DecodingKey> {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.algorithm, self.key.kind()) {
            (Algorithm::HS256, DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), message, signature)
            }
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Algorithm::RS256, DecodingKeyKind::SecretOrDer(der)) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).verify(message, signature)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
            _ => Err(Unspecified),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtSigner for Ring<EncodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Signer<Vec<u8>> for Ring<EncodingKey> {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let key = self.key.as_bytes();
        match self.algorithm {
            Algorithm::HS256 => Ok(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref().to_vec()),
            Algorithm::RS256 => {
                let pair = RsaKeyPair::from_der(key).map_err(|_| Error::new())?;
                let mut signature = vec![0; pair.public().modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature);
                signed.map(|()| signature).map_err(|_| Error::new())
            }
            Algorithm::ES256 => {
                let pair = ec_pair(key).ok_or_else(Error::new)?;
                let signature = pair.sign(&SystemRandom::new(), message).map_err(|_| Error::new())?;
                Ok(signature.as_ref().to_vec())
            }
            Algorithm::EdDSA => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).map_err(|_| Error::new())?;
                Ok(pair.sign(message).as_ref().to_vec())
            }
            _ => Err(Error::new()),
        }
    }
}

fn ec_pair(pkcs8: &[u8]) -> Option<EcdsaKeyPair> {
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &SystemRandom::new()).ok()
}

/// The public half of a private key; `None` when it is not one that `ring` takes, such as of another curve or too short.
pub(super) fn public_half(algorithm: Algorithm, key: &EncodingKey) -> Option<DecodingKey> {
    let key = key.as_bytes();
    match algorithm {
        Algorithm::RS256 => {
            let pair = RsaKeyPair::from_der(key).ok()?;
            Some(DecodingKey::from_rsa_der(pair.public().as_ref()))
        }
        Algorithm::ES256 => Some(DecodingKey::from_ec_der(ec_pair(key)?.public_key().as_ref())),
        Algorithm::EdDSA => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).ok()?;
            Some(DecodingKey::from_ed_der(pair.public_key().as_ref()))
        }
        _ => None,
    }
}
