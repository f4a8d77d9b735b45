//! The bare cost: the same bytes written to the same number of sockets, and nothing else.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use super::sys::now_micros;

/// What to write: `sockets` get a frame of `bytes`, `rounds` times, a round each `every_micros`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub sockets: usize,
    pub bytes: usize,
    pub rounds: usize,
    pub every_micros: u64,
}

impl Shape {
    pub fn to_args(self) -> Vec<String> {
        let Self { sockets, bytes, rounds, every_micros } = self;
        let numbers = [sockets.to_string(), bytes.to_string(), rounds.to_string(), every_micros.to_string()];
        ["bare".to_owned()].into_iter().chain(numbers).collect()
    }

    fn from_args(args: &[String]) -> Option<Self> {
        let [sockets, bytes, rounds, every] = args else { return None };
        let every_micros = every.parse().ok()?;
        let (sockets, bytes, rounds) = (sockets.parse().ok()?, bytes.parse().ok()?, rounds.parse().ok()?);
        Some(Self { sockets, bytes, rounds, every_micros })
    }
}

/// Runs as a process of its own: takes the sockets, waits for a byte on standard input, writes, and waits for its end.
pub fn run(args: &[String]) {
    let shape = Shape::from_args(args).expect("bare SOCKETS BYTES ROUNDS EVERY_MICROS");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("listening on http://{}", listener.local_addr().expect("it is bound"));
    let sockets: Vec<_> = (0..shape.sockets).map(|_| listener.accept().expect("a connection").0).collect();
    for socket in &sockets {
        socket.set_nodelay(true).expect("TCP");
    }
    let frame = frame(shape.bytes);
    let mut input = std::io::stdin();
    input.read_exact(&mut [0]).expect("the word to begin");
    let begun = now_micros();
    for round in 0..shape.rounds as u64 {
        let due = begun + round * shape.every_micros;
        std::thread::sleep(Duration::from_micros(due.saturating_sub(now_micros())));
        for mut socket in &sockets {
            socket.write_all(&frame).expect("the load reads");
        }
    }
    let _end = input.read(&mut [0]);
}

/// A text frame of `bytes` in all, header included.
fn frame(bytes: usize) -> Vec<u8> {
    let body = bytes.saturating_sub(4).clamp(126, 65_535);
    let mut frame = vec![0x81, 126];
    frame.extend((body as u16).to_be_bytes());
    frame.extend(b"{\"type\":\"x");
    frame.resize(4 + body, b'.');
    frame
}
