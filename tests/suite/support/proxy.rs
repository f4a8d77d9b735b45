//! A network that can be cut or slow: connections go through it, or into nothing.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How a network fares.
#[derive(Clone, Copy)]
struct Way {
    /// Connections from before the last cut are cut.
    cuts: u32,
    is_silent: bool,
    /// So long takes each piece that the server sends.
    delay: Duration,
}

/// Stands between a client and a server. It ends with this handle.
pub struct Proxy {
    pub address: SocketAddr,
    way: watch::Sender<Way>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server at `to`.
    pub async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let way = watch::Sender::new(Way { cuts: 0, is_silent: false, delay: Duration::ZERO });
        let task = tokio::spawn(forward(listener, to, way.clone()));
        Self { address, way, task }
    }

    /// From now on it takes everything and passes on nothing, and neither answers nor closes.
    pub fn cut(&self) {
        self.way.send_modify(|way| (way.cuts, way.is_silent) = (way.cuts + 1, true));
    }

    /// It passes on what new connections bring, without delay; those that were cut are closed.
    pub fn mend(&self) {
        self.way.send_modify(|way| (way.is_silent, way.delay) = (false, Duration::ZERO));
    }

    /// Closes all connections, and takes new ones.
    pub fn hang_up(&self) {
        self.way.send_modify(|way| way.cuts += 1);
    }

    /// From now on each piece that the server sends takes so long.
    pub fn slow_down(&self, delay: Duration) {
        self.way.send_modify(|way| way.delay = delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(listener: TcpListener, to: String, way: watch::Sender<Way>) {
    loop {
        let (mut near, _) = listener.accept().await.expect("connections can be taken");
        let (to, mut way) = (to.clone(), way.subscribe());
        tokio::spawn(async move {
            let born = *way.borrow_and_update();
            if !born.is_silent {
                // A server that is away is one to which no connection is made.
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                let delay = way.clone();
                tokio::select! {
                    _ended = pass_on(&mut near, &mut far, delay) => return,
                    _cut = way.wait_for(|way| way.cuts != born.cuts) => {}
                }
            }
            let _over = way.wait_for(|way| !way.is_silent).await;
        });
    }
}

/// Passes on both ways until one of them fails, or both have ended.
async fn pass_on(near: &mut TcpStream, far: &mut TcpStream, way: watch::Receiver<Way>) -> io::Result<()> {
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.split(), far.split());
    let forth = async {
        copy(&mut from_near, &mut to_far).await?;
        to_far.shutdown().await
    };
    let back = async {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let length = from_far.read(&mut piece).await?;
            if length == 0 {
                return to_near.shutdown().await;
            }
            let delay = way.borrow().delay;
            sleep(delay).await;
            to_near.write_all(&piece[..length]).await?;
        }
    };
    tokio::try_join!(forth, back).map(drop)
}
