//! The embedded store, held to the contract.

use std::sync::Arc;

use danmakud::clock::Clock;
use danmakud::model::Timestamp;
use danmakud::store::{EmbeddedConfig, EmbeddedStore};

use crate::contract::{Subject, hold_to_the_contract};

async fn open() -> Subject {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    let config = EmbeddedConfig { dir: dir.path().into(), bucket: EmbeddedConfig::DEFAULT_BUCKET };
    let store = EmbeddedStore::open(config, clock.clone()).unwrap();
    Subject { store: Arc::new(store), clock, rooms: "r".to_owned(), keep: Box::new(dir) }
}

hold_to_the_contract!(open);
