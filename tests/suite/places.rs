//! Places: how many connections there may be, who loses its place, and what those are told for whom there is none.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::server::Start;
use super::support::viewer::Viewer;
use super::support::wire::handshake;

const SOON: Duration = Duration::from_secs(8);

#[tokio::test]
async fn who_is_refused_hears_it_and_is_not_reset() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[server]\nmax_connections = 1").run();
    let _only = Viewer::join(server.address, "r1", "").await;
    let refuse = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(handshake("r1").as_bytes()).await.unwrap();
        let mut answer = String::new();
        let end = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{end:?} after {answer:?}");
        end.is_ok()
    };
    let mut clean = 0;
    for _ in 0..300 {
        clean += u32::from(timeout(SOON, refuse()).await.expect("it is told at once"));
    }
    assert_eq!(clean, 300, "the others were reset");
}
