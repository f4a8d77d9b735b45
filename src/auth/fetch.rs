//! Gets a small document from an address, within bounds.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// How long the whole of it may take. Who comes with a token of a key that is not known yet waits for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest document, in bytes.
pub(super) const MOST_BYTES: usize = 256 * 1024;

/// Speaks HTTP, with TLS where the address asks for it; the roots are those of Mozilla.
pub(super) struct Fetcher(Client<HttpsConnector<HttpConnector>, Empty<Bytes>>);

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fetcher")
    }
}

impl Fetcher {
    /// # Errors
    /// What TLS lacks.
    pub(super) fn new() -> Result<Self, String> {
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new().with_provider_and_webpki_roots(provider);
        let connector = builder.map_err(|error| error.to_string())?.https_or_http().enable_http1().build();
        Ok(Self(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)))
    }

    /// Gets the text at an address. Redirections are not followed: where keys come from is the operator's word alone.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(super) async fn get(&self, address: &Uri) -> Result<String, String> {
        let get = async {
            let answer = self.0.get(address.clone()).await.map_err(|error| told(&error))?;
            if answer.status() != StatusCode::OK {
                return Err(format!("the answer is {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await.map_err(|error| told(&*error))?;
            String::from_utf8(body.to_bytes().to_vec()).map_err(|_| "the answer is not UTF-8".to_owned())
        };
        tokio::time::timeout(PATIENCE, get).await.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
    }
}

/// An error with what is behind it: the client's own says only that it could not connect.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}
