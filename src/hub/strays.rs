//! Looking in the store for strays: what a node that is gone had stored and not passed on, which is done for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::Hub;
use crate::model::{Comment, Cursor};
use crate::room::Room;

/// How often the store is asked while viewers come from other nodes, however many.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Hub {
    /// Who comes with a cursor of another node may come because that node is gone. Nobody waits for what it may have left
    /// in the store: it comes as comments that are late.
    pub(super) fn greet_from_elsewhere(&self, room: &Arc<Room>, since: &Cursor) {
        let is_from_elsewhere = since.given.is_some() && since.epoch != room.epoch();
        if is_from_elsewhere && room.expect_strays(self.inner.parts.clock.now()) {
            tokio::spawn(search(self.clone(), Arc::downgrade(room)));
        }
    }

    /// Looks for strays in a room. Gives whether to look again.
    async fn look_for_strays(&self, room: &Room) -> bool {
        let at = self.inner.parts.clock.now();
        let Some(from) = room.strays_from() else { return false };
        if self.is_cold() {
            return true;
        }
        let retain = |comments: &mut Vec<Comment>| room.retain_strays(at, comments);
        match self.sift(room, from, retain).await {
            Ok((comments, _beyond)) => {
                let strays = room.take_strays(at, comments);
                if !strays.is_empty() {
                    // The dead node's viewers may all have come here.
                    self.inner.parts.relay.forward(room.id(), &strays);
                    debug!(room = %room.id(), count = strays.len(), "found what another node did not pass on");
                }
            }
            Err(error) => self.turn_cold(&error),
        }
        true
    }
}

/// Looks until nobody has come from elsewhere for a while, or the room is gone.
async fn search(hub: Hub, room: Weak<Room>) {
    loop {
        let Some(room) = room.upgrade() else { return };
        if !hub.look_for_strays(&room).await {
            return;
        }
        drop(room);
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::testing::{Scene, Told};
    use crate::model::{Epoch, Given, test_comment};
    use crate::relay::{Envelope, Heard};
    use crate::room::testing::{config, room_id};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_a_dead_node_stored_and_did_not_pass_on_reaches_everybody_once_its_viewers_come() {
        let scene = Scene::with(config(100), 1000, true);
        let (_stays, stays) = scene.join(None).await;
        let elsewhere = |n| {
            let comment = test_comment("r", scene.clock.now().millis(), n, "elsewhere");
            scene.memory.put(&comment);
            comment
        };
        scene.pass(30 * SECOND);
        scene.hub.hear(Heard::Begun { room: room_id(), since: None });
        scene.pass(30 * SECOND);
        scene.hub.mend_all().await;
        let (had, lost) = (elsewhere(1), elsewhere(2));
        scene.hub.hear(Heard::Comments(Envelope { room: room_id(), comments: vec![had.clone().into()] }));
        scene.pass(2 * SECOND);
        sleep(LOOK_EVERY * 2).await;
        assert_eq!(stays.places().len(), 1, "nobody is gone as far as is known");
        let given = Given::new(had.ts.minus(SECOND), [had.position()]);
        let cursor = Cursor { epoch: Epoch(1), given: Some(given), ..Cursor::at(had.position()) };
        let (_comes, comes) = scene.join(Some(cursor)).await;
        sleep(LOOK_EVERY).await;
        assert_eq!((stays.places().len(), comes.places().len()), (2, 1));
        assert_eq!(scene.relay.told.lock().unwrap().last(), Some(&Told::Forwarded(1)), "other nodes lack it as well");
        // It was passed on after all; the next one may be on its way.
        scene.hub.hear(Heard::Comments(Envelope { room: room_id(), comments: vec![lost.into()] }));
        elsewhere(3);
        scene.pass(SECOND / 2);
        sleep(LOOK_EVERY).await;
        assert_eq!((stays.places().len(), comes.places().len()), (2, 1));
        scene.pass(2 * SECOND);
        sleep(LOOK_EVERY * 2).await;
        assert_eq!((stays.places().len(), comes.places().len()), (3, 2));
        elsewhere(4);
        scene.pass(2 * SECOND);
        sleep(LOOK_EVERY * 2).await;
        assert_eq!((stays.places().len(), comes.places().len()), (3, 2), "they are expected no more");
    }
}
