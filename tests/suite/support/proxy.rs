//! A network that can be cut: connections go through it, or into nothing.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Stands between a client and a server. It ends with this handle.
pub struct Proxy {
    pub address: SocketAddr,
    silent: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server at `to`.
    pub async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, silent) = (listener.local_addr().expect("it is bound"), watch::Sender::new(false));
        let task = tokio::spawn(forward(listener, to, silent.clone()));
        Self { address, silent, task }
    }

    /// From now on it takes everything and passes on nothing, and neither answers nor closes.
    pub fn cut(&self) {
        self.silent.send_replace(true);
    }

    /// It passes on what new connections bring; those that were cut are closed.
    pub fn mend(&self) {
        self.silent.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(listener: TcpListener, to: String, silent: watch::Sender<bool>) {
    loop {
        let (mut near, _) = listener.accept().await.expect("connections can be taken");
        let (to, silent) = (to.clone(), silent.clone());
        tokio::spawn(async move {
            let mut silent = silent.subscribe();
            if !*silent.borrow_and_update() {
                let mut far = TcpStream::connect(to).await.expect("the server listens");
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => return,
                    _ = silent.wait_for(|is_silent| *is_silent) => {}
                }
            }
            let _over = silent.wait_for(|is_silent| !is_silent).await;
        });
    }
}
