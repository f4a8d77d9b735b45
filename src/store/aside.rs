//! The file of comments that the store refused for good, so that setting one aside does not lose it.

use std::io::Write as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tracing::error;

use super::contract::{Record, SetAside, WriteReport};

/// Largest size the file grows to; beyond it only the log and the metrics tell.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Appends what is set aside as JSON lines: id, room, time, sender, text, reason and the store's words.
#[derive(Clone, Debug)]
pub struct AsideFile {
    path: PathBuf,
}

impl AsideFile {
    /// The file at `path`; it is made when the first comment is set aside.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Writes the records that `report` names. A failure is logged; the comments' ids are in the log in any case.
    pub(super) async fn append(&self, records: &[Record], report: &WriteReport) {
        if report.set_aside.is_empty() {
            return;
        }
        self.write(report.set_aside.iter().filter_map(|aside| line(records, aside)).collect()).await;
    }

    /// Writes records that are no comments of this release, as they are, in Base64.
    pub(super) async fn append_foreign(&self, foreign: &[(&'static str, Bytes)]) {
        if !foreign.is_empty() {
            self.write(foreign.iter().map(|(field, bytes)| foreign_line(field, bytes)).collect()).await;
        }
    }

    async fn write(&self, lines: String) {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
            if file.metadata()?.len() > MAX_BYTES {
                return Err(std::io::Error::other("the file has reached 64 MiB"));
            }
            file.write_all(lines.as_bytes())?;
            file.sync_data()
        });
        let outcome = written.await.map_err(std::io::Error::other).and_then(|outcome| outcome);
        if let Err(error) = outcome {
            error!(%error, path = %self.path.display(), "cannot write down what was set aside");
        }
    }
}

fn foreign_line(field: &str, bytes: &[u8]) -> String {
    let line = serde_json::json!({ "reason": "damaged", "detail": field, "bytes": STANDARD.encode(bytes) });
    format!("{line}\n")
}

fn line(records: &[Record], aside: &SetAside) -> Option<String> {
    let comment = &records.iter().find(|record| record.posted.comment.id == aside.id)?.posted.comment;
    let line = serde_json::json!({
        "id": comment.id.to_string(), "room": comment.room.as_str(), "ts": comment.ts, "uid": comment.uid.as_str(),
        "name": comment.name.as_str(), "text": comment.text.as_str(), "mode": comment.style.mode.number(),
        "color": comment.style.color.number(), "size": comment.style.size.number(), "reason": aside.reason,
        "detail": aside.detail,
    });
    Some(format!("{line}\n"))
}
