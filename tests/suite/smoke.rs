//! The shortest way through the whole server.

use super::support::server::Start;
use super::support::viewer::{Viewer, texts_of};

#[tokio::test]
async fn a_comment_reaches_everybody_in_the_room_and_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let mut ann = Viewer::join(server.address, "r1", "name=Ann").await;
    let mut bob = Viewer::join(server.address, "r1", "name=Bob").await;
    let mut elsewhere = Viewer::join(server.address, "r2", "").await;
    let ack = ann.say("n1", "哈哈哈", "stored").await;
    assert_eq!((&ack["type"], &ack["level"]), (&"ack".into(), &"stored".into()), "{ack}");
    assert_eq!(bob.texts(1).await, ["哈哈哈"]);
    let (status, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!(
        (status, &window["complete"], texts_of(&window["comments"])),
        (200, &true.into(), vec!["哈哈哈".into()])
    );
    elsewhere.send(&serde_json::json!({"type": "ping"})).await;
    assert_eq!(elsewhere.frame().await["type"], "pong");
    let end = server.stop().await;
    let ledger = end.ledger();
    assert_eq!((end.code, ledger.accepted, ledger.stored, ledger.not_stored), (Some(0), 1, 1, 0), "{end:?}");
}
