//! The MongoDB store, held to the contract.

use std::sync::Arc;

use danmakud::clock::Clock;
use danmakud::store::MongoStore;

use super::contract::{Subject, hold_to_the_contract};
use super::mongo::config;
use super::support::mongod::ReplicaSet;

async fn open() -> Subject {
    let set = ReplicaSet::shared().await;
    // The servers drop what has expired by their own clock, so the store's begins there.
    let clock = Clock::manual(Clock::system().now());
    let (store, _) = MongoStore::connect(config(set.uri(None)), clock.clone()).await.unwrap();
    Subject { store: Arc::new(store), clock, rooms: "r".to_owned(), keep: Box::new(()) }
}

hold_to_the_contract!(open);
