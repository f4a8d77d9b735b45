//! The obvious design: axum's WebSocket with `tokio::sync::broadcast`, a task and a queue per viewer, a send per comment.
//!
//! It speaks the frames of protocol v1 that the bench needs. It keeps nothing and checks nothing, so it is spared that
//! work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};

/// Comments that a viewer may be behind, as many as a room's ring holds.
const BEHIND: usize = 1024;

type Rooms = Arc<Mutex<HashMap<String, Sender<Utf8Bytes>>>>;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Runs as a process of its own until it is killed.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("listening on http://{}", listener.local_addr().expect("it is bound"));
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("TCP"));
        let router = Router::new().route("/ws/{room}", get(upgrade)).with_state(Rooms::default());
        axum::serve(listener, router).await.expect("it serves until it is killed");
    });
}

async fn upgrade(ws: WebSocketUpgrade, State(rooms): State<Rooms>, Path(room): Path<String>) -> Response {
    let sender = {
        let mut rooms = rooms.lock().expect("nothing panics under the lock");
        rooms.entry(room).or_insert_with(|| broadcast::channel(BEHIND).0).clone()
    };
    ws.on_upgrade(move |socket| async move {
        let queue = sender.subscribe();
        let _gone = session(socket, &sender, queue).await;
    })
}

async fn session(
    mut socket: WebSocket,
    room: &Sender<Utf8Bytes>,
    mut queue: Receiver<Utf8Bytes>,
) -> Result<(), axum::Error> {
    socket.send(Message::text(r#"{"type":"hello","recent":[]}"#)).await?;
    loop {
        tokio::select! {
            comment = queue.recv() => match comment {
                Ok(frame) => socket.send(Message::Text(frame)).await?,
                Err(RecvError::Lagged(missed)) => {
                    socket.send(Message::text(format!(r#"{{"type":"gap","missed":{missed}}}"#))).await?;
                }
                Err(RecvError::Closed) => return Ok(()),
            },
            message = socket.recv() => match message.transpose()? {
                Some(Message::Text(text)) => {
                    if let Some(answer) = take(&text, room) {
                        socket.send(Message::text(answer)).await?;
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}

/// Publishes a `send`; gives its acknowledgement.
fn take(text: &str, room: &Sender<Utf8Bytes>) -> Option<String> {
    let sent: Value = serde_json::from_str(text).ok()?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let id = format!("{count:024x}");
    let comment = json!({
        "id": id, "uid": "g-1f0c2b3d4e5f6071", "name": "游客1f0c2b", "text": sent.get("text")?,
        "mode": 1, "color": 16_777_215, "size": 25, "ts": 1_700_000_000_000_u64 + count,
    });
    // Written by hand in this order, for the json! macro sorts: what a frame is stands first.
    let frame = format!(r#"{{"type":"comments","cursor":"{count:048x}","comments":[{comment}]}}"#);
    let _nobody_watches = room.send(frame.into());
    Some(format!(r#"{{"type":"ack","nonce":{},"id":"{id}","level":"accepted"}}"#, sent.get("nonce")?))
}
