//! Asking a server over HTTP, a connection each time, as tools do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::load::client::Target;

/// An answer is in by then, or counts as none.
const WITHIN: Duration = Duration::from_secs(5);

/// The most that an answer may have.
const MOST: usize = 16 << 20;

/// Asks for a path; gives the status and the body.
pub(super) async fn get(address: SocketAddr, target: &Target, path: &str) -> io::Result<(u16, String)> {
    let ask = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let request = Request::get(target.path(path)).header("host", target.socket()).header("connection", "close");
        let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MOST).collect().await.map_err(io::Error::other)?;
            Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
        };
        tokio::pin!(connection);
        tokio::pin!(answer);
        tokio::select! {
            biased; // an answer goes before the connection's end, which comes with it
            answer = &mut answer => answer,
            ended = &mut connection => match ended {
                // What is still to be read is in memory.
                Ok(()) => answer.await,
                Err(error) => Err(io::Error::other(error)),
            },
        }
    };
    let no_answer = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {WITHIN:?}"));
    timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(no_answer()))
}
