//! What followers make of a small stream.

use super::*;
use crate::model::{Relayed, Role, Timestamp, test_comment};

pub(super) const OWN: NodeId = [0; 8];
const OTHER: NodeId = [1; 8];
const THIRD: NodeId = [2; 8];

pub(super) fn message(node: NodeId, seq: u64, comments: u32) -> Message {
    let first = u32::try_from(seq * 1000).unwrap() + u32::from(node[0]) * 1_000_000;
    let comment = |n| Relayed { comment: test_comment("r", 1, first + n, "x"), sender: Role::Viewer };
    Message { node, seq, body: Body::Comments((0..comments).map(comment).collect()) }
}

/// A room's stream, of at most so many comments.
#[derive(Clone)]
pub(super) struct Stream {
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) keeps: u64,
    pub(super) entries: Vec<Entry>,
    /// The run, the refusals and the evictions of its server.
    pub(super) life: (u64, u64, u64),
    pub(super) now: Instant,
}

impl Stream {
    pub(super) fn new(epoch: u64, keeps: u64) -> Self {
        Self { epoch, seq: 0, keeps, entries: Vec::new(), life: (1, 0, 0), now: Instant::now() }
    }

    /// Makes an empty one of it, as when it expires.
    pub(super) fn begin_anew(&mut self) {
        (self.epoch, self.seq) = (self.epoch + 1, 0);
        self.entries.clear();
    }

    /// Lets time pass, over which it may expire.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        let expiry = (EXPIRES_AFTER + EXPIRES_WITHIN) / 2;
        if self.entries.last().is_some_and(|newest| self.now >= newest.at + expiry) {
            self.begin_anew();
        }
    }

    pub(super) fn append(&mut self, message: Message) -> Entry {
        self.seq += message.count();
        let entry = Entry { id: Some(EntryId { epoch: self.epoch, seq: self.seq }), at: self.now, message };
        self.entries.push(entry.clone());
        let oldest = (self.seq + 1).saturating_sub(self.keeps);
        self.entries.retain(|entry| entry.id.unwrap().seq >= oldest);
        entry
    }

    /// What a follower at this place is given.
    fn from(&self, place: Option<EntryId>, at: Instant) -> Read {
        let is_wanted = |entry: &&Entry| {
            let (id, from) = (entry.id.unwrap(), place.unwrap_or(EntryId { epoch: 0, seq: 0 }));
            (id.epoch, id.seq) >= (from.epoch, from.seq)
        };
        let (run, refused, evicted) = self.life;
        let life = Some(Arc::new(Life { run: run.to_string(), refused, evicted }));
        let read = self.entries.iter().filter(is_wanted).map(|entry| Entry { at, ..entry.clone() });
        Read { entries: read.collect(), life, at }
    }
}

/// Reads until the follower is content, long after everything was heard.
fn fill(follower: &mut Follower, stream: &Stream) -> Filled {
    let later = follower.heard_until.unwrap_or_else(Instant::now) + RECENT;
    fill_at(follower, stream, later)
}

/// The same, so soon after everything was heard that no stream can have expired.
fn fill_soon(follower: &mut Follower, stream: &Stream) -> Filled {
    let soon = follower.heard_until.unwrap_or_else(Instant::now) + RECENT - Duration::from_millis(1);
    fill_at(follower, stream, soon)
}

pub(super) fn fill_at(follower: &mut Follower, stream: &Stream, at: Instant) -> Filled {
    for _ in 0..3 {
        if let Some(filled) = follower.fill(stream.from(follower.place(), at)) {
            return filled;
        }
    }
    panic!("it asks for ever");
}

/// A follower that hears the room, and the stream it follows, with three messages of two comments.
fn followed() -> (Follower, Stream) {
    let (mut follower, mut stream) = (Follower::new(OWN), Stream::new(1, 200));
    for seq in 1..4 {
        stream.append(message(OTHER, seq, 2));
    }
    let filled = fill(&mut follower, &stream);
    assert_eq!((filled.comments.len(), filled.bridge, filled.is_due), (6, Bridge::New, false));
    (follower, stream)
}

fn given(step: Step) -> usize {
    match step {
        Step::Give(comments) => comments.len(),
        _ => 0,
    }
}

#[test]
fn live_messages_are_given_once_and_own_ones_never() {
    let (mut follower, mut stream) = followed();
    let next = stream.append(message(OTHER, 4, 3));
    assert_eq!(given(follower.take(next.clone())), 3);
    assert_eq!(follower.take(next), Step::Nothing, "published again");
    assert_eq!(follower.take(stream.append(message(OWN, 1, 1))), Step::Nothing);
    assert_eq!(given(follower.take(stream.append(message(THIRD, 1, 1)))), 1, "follows the own one");
}

#[test]
fn what_a_cut_off_follower_missed_comes_before_what_is_live() {
    let (mut follower, mut stream) = followed();
    let missed = message(OTHER, 4, 2);
    stream.append(missed.clone());
    follower.hold(None);
    let live = stream.append(message(OTHER, 5, 1));
    assert_eq!(follower.take(live.clone()), Step::Nothing);
    let filled = fill(&mut follower, &stream);
    assert_eq!((filled.comments.len(), filled.bridge), (3, Bridge::Whole));
    assert_eq!(Body::Comments(filled.comments[..2].to_vec()), missed.body);
    assert_eq!(follower.take(live), Step::Nothing);
}

#[test]
fn a_gap_between_live_messages_is_noticed() {
    let (mut follower, mut stream) = followed();
    stream.append(message(OTHER, 4, 2));
    assert_eq!(follower.take(stream.append(message(THIRD, 1, 1))), Step::Read);
    let filled = fill(&mut follower, &stream);
    assert_eq!((filled.comments.len(), filled.bridge), (3, Bridge::Whole));
}

#[test]
fn more_than_the_stream_keeps_is_told_exactly() {
    let (mut follower, mut stream) = followed();
    (4..254).for_each(|seq| drop(stream.append(message(OTHER, seq, 1))));
    let filled = fill(&mut follower, &stream);
    assert_eq!((filled.comments.len(), filled.bridge), (200, Bridge::Short(50)));
    let (mut follower, mut stream) = followed();
    (4..204).for_each(|seq| drop(stream.append(message(OTHER, seq, 1))));
    let filled = fill(&mut follower, &stream);
    assert_eq!((filled.comments.len(), filled.bridge), (200, Bridge::Whole), "not one less than it keeps");
}

#[test]
fn another_stream_says_nothing_of_the_one_before() {
    let (mut follower, _) = followed();
    follower.hold(None);
    let mut anew = Stream::new(2, 200);
    anew.append(message(OTHER, 3, 2));
    anew.append(message(OTHER, 4, 1));
    let filled = fill(&mut follower, &anew);
    assert_eq!((filled.comments.len(), filled.bridge), (1, Bridge::Unknown), "one was had, and stands in both");
    assert_eq!(fill(&mut followed().0, &Stream::new(0, 200)).bridge, Bridge::Unknown);
}

#[test]
fn a_room_that_was_quiet_until_its_stream_expired_goes_on_live() {
    let (mut follower, _) = followed();
    let mut anew = Stream::new(2, 200);
    assert_eq!(given(follower.take(anew.append(message(OTHER, 4, 1)))), 1);
    anew.append(message(OTHER, 5, 1));
    assert_eq!(follower.take(anew.append(message(OTHER, 6, 1))), Step::Read);
    assert_eq!(fill(&mut follower, &anew).bridge, Bridge::Whole);
}

/// A follower that heard everything until its stream had expired.
fn quiet() -> Follower {
    let mut follower = followed().0;
    let had = follower.last.unwrap().at;
    follower.hold(Some(had + EXPIRED));
    follower
}

#[test]
fn a_quiet_room_whose_stream_has_expired_lacks_nothing() {
    let soon = |stream: &Stream| fill_soon(&mut quiet(), stream).bridge;
    let mut anew = Stream::new(2, 2);
    assert_eq!(soon(&anew), Bridge::Whole, "none is there, nor was");
    anew.append(message(OTHER, 4, 1));
    assert_eq!(soon(&anew), Bridge::Whole, "it is whole");
    assert_eq!(fill(&mut quiet(), &anew).bridge, Bridge::Unknown, "one may have come and expired");
    for (life, why) in [
        ((1, 1, 0), "something was refused, and published without a stream"),
        ((2, 0, 0), "Redis was lost"),
        ((1, 0, 1), "a stream may have been evicted"),
    ] {
        assert_eq!(soon(&Stream { life, ..anew.clone() }), Bridge::Unknown, "{why}");
    }
    (5..9).for_each(|seq| drop(anew.append(message(OTHER, seq, 1))));
    assert_eq!(soon(&anew), Bridge::Unknown, "its beginning is gone");
}

#[test]
fn a_stream_that_is_gone_before_its_time_passes_for_nothing() {
    let mut anew = Stream::new(2, 200);
    assert_eq!(fill_soon(&mut followed().0, &anew).bridge, Bridge::Unknown, "it was deleted");
    anew.append(message(OTHER, 9, 1));
    let mut follower = followed().0;
    assert_eq!(fill_soon(&mut follower, &anew).bridge, Bridge::Unknown, "and there is another one");
    assert_eq!(fill_soon(&mut follower, &anew).bridge, Bridge::Whole, "it is told once");
    let mut early = followed().0;
    let had = early.last.unwrap().at;
    early.hold(Some(had + EXPIRED - Duration::from_millis(1)));
    assert_eq!(fill_soon(&mut early, &anew).bridge, Bridge::Unknown, "it may have been there still");
}

#[test]
fn a_stream_that_lacks_what_was_refused_passes_for_nothing() {
    let (mut follower, stream) = followed();
    let refused = Stream { life: (1, 1, 0), ..stream };
    assert_eq!(fill_soon(&mut follower, &refused).bridge, Bridge::Unknown, "though it goes on from its place");
    let evicting = Stream { life: (1, 1, 1), ..refused };
    assert_eq!(fill_soon(&mut follower, &evicting).bridge, Bridge::Whole, "this one is there");
}

#[test]
fn how_long_nothing_was_heard_is_not_shortened_by_what_comes_before_the_stream_is_read() {
    let (mut follower, _) = followed();
    let before = follower.heard_until.unwrap();
    follower.hold(Some(before));
    follower.hold(Some(before + RECENT));
    let read = Stream::new(2, 200).from(None, before + RECENT);
    assert_eq!(follower.fill(read.clone()), None);
    assert_eq!(follower.fill(read).unwrap().bridge, Bridge::Unknown);
}

#[test]
fn what_another_server_has_is_not_sure_to_be_all() {
    let (mut follower, stream) = followed();
    let promoted = Stream { life: (2, 0, 0), ..stream };
    assert_eq!(fill_soon(&mut follower, &promoted).bridge, Bridge::Unknown);
    assert_eq!(fill(&mut follower, &promoted).bridge, Bridge::Whole);
    let silent = Read { life: None, ..promoted.from(follower.place(), Instant::now()) };
    assert_eq!(follower.fill(silent).unwrap().bridge, Bridge::Unknown);
}

#[test]
fn a_promoted_replica_that_lacks_the_newest_is_noticed() {
    let (mut live, stream) = followed();
    let mut behind = stream.clone();
    behind.entries.pop();
    behind.seq -= 2;
    let mut cut_off = followed().0;
    let fork = behind.append(message(THIRD, 1, 2));
    assert_eq!(live.take(fork), Step::Read);
    for follower in [&mut live, &mut cut_off] {
        let filled = fill(follower, &behind);
        assert_eq!((filled.comments.len(), filled.bridge), (2, Bridge::Unknown), "given, though its place was taken");
    }
}

#[test]
fn messages_without_a_place_are_given_live_and_missed_for_good() {
    let (mut follower, stream) = followed();
    let bare = Entry { id: None, at: stream.now, message: message(OTHER, 4, 1) };
    assert_eq!(given(follower.take(bare.clone())), 1);
    assert_eq!(follower.take(bare.clone()), Step::Nothing, "published again");
    assert_eq!(fill(&mut follower, &stream).bridge, Bridge::Whole);
    follower.miss(&bare);
    assert_eq!(fill(&mut follower, &stream).bridge, Bridge::Unknown);
}

#[test]
fn what_a_node_gave_up_is_passed_on_live_and_from_the_stream() {
    let since = Timestamp::from_millis(7);
    let lost = |node, seq| Message { node, seq, body: Body::Lost { count: 3, since } };
    let (mut follower, mut stream) = followed();
    assert_eq!(follower.take(stream.append(lost(OTHER, 4))), Step::Lost(since));
    assert_eq!(follower.take(stream.append(lost(OWN, 1))), Step::Nothing);
    let mut late = followed().0;
    let filled = fill(&mut late, &stream);
    assert_eq!((filled.bridge, filled.lost_since), (Bridge::Whole, Some(since)));
}

#[test]
fn without_the_stream_what_was_held_back_is_given_all_the_same() {
    let (mut follower, mut stream) = followed();
    follower.hold(None);
    follower.take(stream.append(message(OTHER, 4, 1)));
    let filled = follower.go_on();
    assert_eq!((filled.comments.len(), filled.bridge), (1, Bridge::Unknown));
    assert_eq!(given(follower.take(stream.append(message(OTHER, 5, 1)))), 1);
}

#[test]
fn a_message_that_no_stream_leads_up_to_is_given_in_the_end() {
    let (mut follower, mut stream) = followed();
    stream.append(message(OTHER, 4, 1));
    assert_eq!(follower.take(stream.append(message(OTHER, 5, 2))), Step::Read);
    let dropped = Stream::new(2, 200);
    let first = fill(&mut follower, &dropped);
    assert_eq!((first.comments.len(), first.is_due), (0, true));
    let second = fill(&mut follower, &dropped);
    assert_eq!((second.comments.len(), second.bridge, second.is_due), (2, Bridge::Unknown, false));
    assert_eq!(given(follower.take(stream.append(message(OTHER, 6, 1)))), 1);
}

#[test]
fn more_than_can_be_held_back_is_read_again() {
    let (mut follower, mut stream) = followed();
    stream.keeps = 10_000;
    follower.hold(None);
    let before = stream.from(follower.place(), Instant::now());
    for seq in 4..4 + 2 * MAX_HELD as u64 {
        assert_eq!(follower.take(stream.append(message(OTHER, seq, 1))), Step::Nothing);
    }
    let first = follower.fill(before).unwrap();
    assert_eq!((first.comments.len(), first.bridge, first.is_due), (MAX_HELD, Bridge::Whole, true));
    let rest = fill(&mut follower, &stream);
    assert_eq!((rest.comments.len(), rest.bridge, rest.is_due), (MAX_HELD, Bridge::Whole, false));
}
