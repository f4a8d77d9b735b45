//! Refuses connections so that they hear it.
//!
//! A socket that is closed while bytes from the client are unread, or on their way, resets the connection, and a reset
//! can take the answer with it. So a refused connection lingers until the client has closed its side: for a short
//! time, for few bytes, and only so many of them; beyond that a storm is answered and dropped at once.

use std::net::Shutdown as Half;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::gate::Full;
use crate::shutdown::Shutdown;

/// Most refused connections that linger at once; each has a file descriptor. A client that reads its answer takes a round
/// trip, so at 100 ms for one these do for 2,500 refusals a second.
pub(super) const MOST_LINGERING: usize = 256;

/// How long one lingers: three round trips to the other end of the world.
const LINGER: Duration = Duration::from_secs(1);

/// Most bytes that it may still send: a whole request of a friendly client, with its body.
const MOST_BYTES: usize = 16 * 1024;

/// What refuses connections. The tasks it starts end by themselves, and at once when the shutdown begins.
#[derive(Debug)]
pub(super) struct Refuser {
    lingering: Arc<Semaphore>,
    tasks: TaskTracker,
    shutdown: Shutdown,
}

impl Refuser {
    pub(super) fn new(tasks: TaskTracker, shutdown: Shutdown) -> Self {
        Self { lingering: Arc::new(Semaphore::new(MOST_LINGERING)), tasks, shutdown }
    }

    /// Answers that there is no place, and closes.
    pub(super) fn refuse(&self, stream: TcpStream, full: Full) {
        let socket = SockRef::from(&stream);
        // Past the runtime, which does not know yet that a new socket can be written to. Who is gone already need not
        // be told.
        let told = socket.send(full.answer().as_bytes()).and_then(|_| socket.shutdown(Half::Write));
        if told.is_err() {
            return;
        }
        let Ok(place) = Arc::clone(&self.lingering).try_acquire_owned() else { return };
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased; // a stop does not wait for those who were refused
                _ = shutdown.begun() => {}
                _ = timeout(LINGER, drain(&stream)) => {}
            }
            drop((stream, place));
        });
    }
}

/// Reads and forgets until the client closes, or has sent too much.
async fn drain(stream: &TcpStream) {
    let mut left = MOST_BYTES;
    while left > 0 && stream.readable().await.is_ok() {
        let mut some = [0; 1024];
        match stream.try_read(&mut some) {
            Ok(0) => return,
            Ok(read) => left = left.saturating_sub(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    async fn refused(listener: &TcpListener, refuser: &Refuser) -> TcpStream {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        refuser.refuse(listener.accept().await.unwrap().0, Full::Handshakes);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, Full::Handshakes.answer());
        client
    }

    #[tokio::test]
    async fn only_so_many_linger_and_each_until_its_client_closes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refuser = Refuser {
            lingering: Arc::new(Semaphore::new(2)),
            tasks: TaskTracker::new(),
            shutdown: Shutdown::default(),
        };
        let mut clients = Vec::new();
        for lingering in [1, 2, 2, 2] {
            clients.push(refused(&listener, &refuser).await);
            assert_eq!(refuser.tasks.len(), lingering);
        }
        drop(clients);
        refuser.tasks.close();
        refuser.tasks.wait().await;
        assert_eq!(refuser.lingering.available_permits(), 2);
    }

    #[tokio::test]
    async fn a_client_that_does_not_close_or_does_not_stop_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refuser = Refuser::new(TaskTracker::new(), Shutdown::default());
        let silent = refused(&listener, &refuser).await;
        let chatty = refused(&listener, &refuser).await;
        SockRef::from(&chatty).send(&[b'x'; 2 * MOST_BYTES]).unwrap();
        refuser.tasks.close();
        assert!(timeout(10 * LINGER, refuser.tasks.wait()).await.is_ok());
        drop((silent, chatty));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_those_who_were_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refuser = Refuser::new(TaskTracker::new(), Shutdown::default());
        let client = refused(&listener, &refuser).await;
        let begun = tokio::time::Instant::now();
        refuser.shutdown.begin(Duration::from_secs(1));
        refuser.tasks.close();
        refuser.tasks.wait().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(client);
    }
}
