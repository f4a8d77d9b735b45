//! The profiles and the recorded evening that come with the binary, from `config/load/`.

use std::path::Path;

use crate::load::trace::{self, Line, TraceError};

macro_rules! profiles {
    ($($name:literal),+) => {
        /// The shipped profiles: name and TOML.
        pub const PROFILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../config/load/", $name, ".toml")))),+];
    };
}

profiles!["quiet-evening", "evening", "peak-room", "many-rooms", "slow-readers", "reconnect-storm", "misbehaving"];

/// The name under which the recorded evening can be sent.
pub const EVENING: &str = "evening";

/// One real evening of one real room, without texts and people: `tests/data/live-trace-a.csv`.
static TRACE: &[u8] = include_bytes!("../../../config/load/evening.csv.zst");

/// Its size when unpacked is 1.7 MB.
const TRACE_BYTES: usize = 4 << 20;

/// The shipped profile of this name.
#[must_use]
pub fn profile(name: &str) -> Option<&'static str> {
    PROFILES.iter().find(|(own, _)| *own == name).map(|(_, toml)| *toml)
}

/// The names of all, for people.
#[must_use]
pub fn names() -> String {
    PROFILES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Reads the recorded evening.
///
/// # Errors
/// [`TraceError`] if the binary is damaged.
pub fn evening() -> Result<Vec<Line>, TraceError> {
    let path = Path::new("evening.csv");
    let unreadable = |source| TraceError::Read { path: path.to_owned(), source };
    let csv = zstd::bulk::decompress(TRACE, TRACE_BYTES).map_err(unreadable)?;
    trace::read(path, csv.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_evening_is_the_recorded_one() {
        assert_eq!(evening().unwrap(), trace::load(Path::new("tests/data/live-trace-a.csv")).unwrap());
    }

    #[test]
    fn every_profile_in_the_folder_is_shipped() {
        let folder = std::fs::read_dir("config/load").unwrap();
        let files =
            folder.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "toml"));
        let mut found = 0;
        for path in files {
            found += 1;
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert_eq!(profile(name), Some(std::fs::read_to_string(&path).unwrap().as_str()), "{name}");
        }
        assert_eq!(found, PROFILES.len());
    }
}
