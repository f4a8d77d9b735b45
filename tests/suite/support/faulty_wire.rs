//! A network between viewers and a server that does something wrong to one frame of comments in so many, and knows to how
//! many comments it did.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How every frame of comments begins.
const COMMENTS: &[u8] = b"{\"type\":\"comments\"";

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    Drops,
    Doubles,
    /// Sends the frame behind the next one.
    Swaps,
    /// Holds the frame, and all behind it, back for so long.
    Delays(Duration),
    /// Changes a character of the first comment's text.
    Damages,
    /// Sends a frame of another room's as well.
    Strays,
}

/// Which frame: the first one, and from there on one in so many.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    pub first: u64,
    pub one_in: u64,
}

#[derive(Default)]
struct Counted {
    frames: u64,
    comments: u64,
    /// By room, a frame of comments.
    last: HashMap<String, Vec<u8>>,
}

/// It ends with this handle.
pub struct FaultyWire {
    pub address: SocketAddr,
    counted: Arc<Mutex<Counted>>,
    task: JoinHandle<()>,
}

impl FaultyWire {
    /// In front of the server at `to`.
    pub async fn start(to: SocketAddr, wrong: Wrong, which: Which) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let counted = Arc::new(Mutex::new(Counted::default()));
        let shared = Arc::clone(&counted);
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.expect("connections can be taken");
                let counted = Arc::clone(&shared);
                tokio::spawn(async move {
                    // An end on one side is an end on the other.
                    let _ended = pass_on(near, to, wrong, which, &counted).await;
                });
            }
        });
        Self { address, counted, task }
    }

    /// Comments that it did something to, each counted once for each viewer.
    pub fn comments(&self) -> u64 {
        self.counted.lock().unwrap().comments
    }

    /// Frames of comments that went through.
    pub fn frames(&self) -> u64 {
        self.counted.lock().unwrap().frames
    }
}

impl Drop for FaultyWire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(
    mut near: TcpStream,
    to: SocketAddr,
    wrong: Wrong,
    which: Which,
    counted: &Mutex<Counted>,
) -> io::Result<()> {
    let mut far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((from_near, mut to_near), (from_far, mut to_far)) = (near.split(), far.split());
    let mut from_near = BufReader::new(from_near);
    let mut request = String::new();
    from_near.read_line(&mut request).await?;
    let room = request.split(['/', '?', ' ']).nth(3).unwrap_or_default().to_owned();
    let is_socket = request.starts_with("GET /ws/");
    to_far.write_all(request.as_bytes()).await?;
    let forth = async {
        copy(&mut from_near, &mut to_far).await?;
        to_far.shutdown().await
    };
    let back = async {
        let mut from_far = BufReader::with_capacity(64 * 1024, from_far);
        if is_socket {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                from_far.read_line(&mut line).await?;
                to_near.write_all(line.as_bytes()).await?;
            }
            let mut held = None;
            loop {
                let frame = read_frame(&mut from_far).await?;
                let frames = treat(frame, &room, wrong, which, counted, &mut held).await;
                to_near.write_all(&frames).await?;
            }
        }
        copy(&mut from_far, &mut to_near).await?;
        to_near.shutdown().await
    };
    tokio::try_join!(forth, back).map(drop)
}

/// What becomes of one frame: bytes to pass on.
async fn treat(
    frame: Vec<u8>,
    room: &str,
    wrong: Wrong,
    which: Which,
    counted: &Mutex<Counted>,
    held: &mut Option<Vec<u8>>,
) -> Vec<u8> {
    if !payload(&frame).starts_with(COMMENTS) {
        return frame;
    }
    if let Some(held) = held.take() {
        return [frame, held].concat();
    }
    let stray = {
        let mut counted = counted.lock().unwrap();
        counted.frames += 1;
        counted.last.insert(room.to_owned(), frame.clone());
        let is_hit = counted.frames >= which.first && (counted.frames - which.first).is_multiple_of(which.one_in);
        if !is_hit || wrong == Wrong::Nothing {
            return frame;
        }
        let stray = counted.last.iter().find(|(other, _)| *other != room).map(|(_, frame)| frame.clone());
        let hit = stray.as_ref().filter(|_| wrong == Wrong::Strays).unwrap_or(&frame);
        let comments: Value = serde_json::from_slice(payload(hit)).expect("the server sends JSON");
        let comments = comments["comments"].as_array().expect("comments").len() as u64;
        counted.comments += if wrong == Wrong::Damages { 1 } else { comments };
        stray
    };
    match wrong {
        Wrong::Nothing => frame,
        Wrong::Drops => Vec::new(),
        Wrong::Doubles => [frame.clone(), frame].concat(),
        Wrong::Swaps => {
            *held = Some(frame);
            Vec::new()
        }
        Wrong::Delays(time) => {
            sleep(time).await;
            frame
        }
        Wrong::Damages => damage(frame),
        Wrong::Strays => [frame, stray.expect("there is another room")].concat(),
    }
}

/// Puts another character of the same length in the middle of the first text.
fn damage(mut frame: Vec<u8>) -> Vec<u8> {
    const TEXT: &[u8] = b"\"text\":\"";
    let place = frame.windows(TEXT.len()).position(|window| window == TEXT).expect("a comment has a text") + TEXT.len();
    // All texts of a load test begin with six ideographs of three bytes.
    let other = if frame[place..place + 3] == *"错".as_bytes() { "误" } else { "错" };
    frame[place..place + 3].copy_from_slice(other.as_bytes());
    frame
}

fn header(frame: &[u8]) -> usize {
    match frame[1] {
        126 => 4,
        127 => 10,
        _ => 2,
    }
}

fn payload(frame: &[u8]) -> &[u8] {
    &frame[header(frame)..]
}

async fn read_frame(from: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 2];
    from.read_exact(&mut frame).await?;
    let header = header(&frame);
    frame.resize(header, 0);
    from.read_exact(&mut frame[2..]).await?;
    let long = frame[2..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let length = if header == 2 { frame[1].into() } else { long };
    frame.resize(header + length, 0);
    from.read_exact(&mut frame[header..]).await?;
    Ok(frame)
}
