//! What happens to MongoDB while comments come in.

use bson::doc;
use tokio::time::sleep;

use super::super::support::mongod::{ADMIN, Access, ReplicaSet, until};
use super::super::support::proxy::Proxy;
use super::{Force, Told, in_a_storm};

async fn primary(set: &ReplicaSet) -> usize {
    until("there is a primary", async || set.primary().await).await
}

/// The primary is killed, then the one that followed it, then both come back.
pub async fn primaries_killed(force: Force) -> Told {
    let set = ReplicaSet::start_of_equals(3).await;
    let uri = set.uri(None);
    in_a_storm(force, set, &uri, async |set, _| {
        let first = primary(set).await;
        set.kill(first);
        let second = primary(set).await;
        sleep(force.lasts / 4).await;
        set.kill(second);
        sleep(force.lasts / 4).await;
        set.restart(first).await;
        set.restart(second).await;
        primary(set).await;
    })
    .await
}

/// The primary is told to step down, and then the next one.
pub async fn stepped_down(force: Force) -> Told {
    let set = ReplicaSet::start_of_equals(3).await;
    let uri = set.uri(None);
    in_a_storm(force, set, &uri, async |set, _| {
        for _time in 0..2 {
            let old = primary(set).await;
            let step_down = doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10 };
            set.command(old, step_down).await.expect("another can follow it");
            let new = primary(set).await;
            assert_ne!(new, old);
            sleep(force.lasts / 2).await;
        }
    })
    .await
}

/// Both secondaries live, and replicate nothing: the primary takes writes, and no majority acknowledges them.
pub async fn majority_stalled(force: Force) -> Told {
    let set = ReplicaSet::start(3, Access::Open).await;
    let uri = set.uri(None);
    in_a_storm(force, set, &uri, async |set, server| {
        for secondary in [1, 2] {
            set.command(secondary, doc! { "fsync": 1, "lock": true }).await.expect("a node can be locked");
        }
        // Longer than `write_timeout`, so that the replayer hears of it from MongoDB.
        sleep(force.lasts * 2).await;
        assert!(server.sum("danmaku_flush_retries_total").await > 0, "no write has noticed");
        for secondary in [1, 2] {
            set.command(secondary, doc! { "fsyncUnlock": 1 }).await.expect("it was locked");
        }
    })
    .await
}

pub async fn frozen(force: Force) -> Told {
    let set = ReplicaSet::start(1, Access::Open).await;
    let uri = set.uri(None);
    in_a_storm(force, set, &uri, async |set, _| {
        set.freeze(0);
        sleep(force.lasts).await;
        set.thaw(0);
    })
    .await
}

/// Room for MongoDB's three journal files of 100 MB, and some for data.
const DISK_MIB: u32 = 700;

/// No byte is left on MongoDB's disk, which ends it; it is started anew once there is room.
pub async fn disk_full(force: Force) -> Told {
    let set = ReplicaSet::start_on_small_disk(DISK_MIB).await;
    let uri = set.uri(None);
    in_a_storm(force, set, &uri, async |set, server| {
        set.fill_disk();
        until("comments go to the outbox", async || {
            (server.metric("danmaku_outbox_parked_total").await > 0).then_some(())
        })
        .await;
        sleep(force.lasts).await;
        set.free_disk();
        if !set.is_running(0) {
            set.restart(0).await;
        }
    })
    .await
}

pub async fn network_cut(force: Force) -> Told {
    let set = ReplicaSet::start(1, Access::Open).await;
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address);
    in_a_storm(force, set, &uri, async |_, _| {
        proxy.cut();
        sleep(force.lasts).await;
        proxy.mend();
    })
    .await
}

/// The server's user gets another password, and its connections end; later the old one holds again.
pub async fn password_changed(force: Force) -> Told {
    let set = ReplicaSet::start(1, Access::Password).await;
    let make = doc! { "createUser": "app", "pwd": "old", "roles": [{ "role": "dbOwner", "db": "danmakud" }] };
    set.command(0, make).await.expect("the user is made");
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://app:old@{}/?directConnection=true&authSource=admin", proxy.address);
    assert!(!uri.contains(ADMIN), "the administrator keeps the password");
    in_a_storm(force, set, &uri, async |set, server| {
        set.command(0, doc! { "updateUser": "app", "pwd": "new" }).await.expect("it is changed");
        proxy.hang_up();
        until("it says that it is not ready", async || {
            (server.request("GET", "/readyz", "").await.0 == 503).then_some(())
        })
        .await;
        sleep(force.lasts).await;
        set.command(0, doc! { "updateUser": "app", "pwd": "old" }).await.expect("it is changed back");
    })
    .await
}
