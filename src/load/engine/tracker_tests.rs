use proptest::prelude::*;

use super::*;

/// A room in which so many comments were sent and acknowledged, in this order on one node.
fn sent(count: u32, order: impl IntoIterator<Item = u32>) -> Sent {
    let mut sent = Sent::default();
    for _ in 0..count {
        let number = sent.push(0, 0);
        sent.settle(number, State::Acknowledged).unwrap();
    }
    let node = sent.node(1);
    for (place, number) in order.into_iter().enumerate() {
        let info = sent.get_mut(number).unwrap();
        (info.node, info.place) = (node, place as u64 + 1);
    }
    sent
}

fn take(tracker: &mut Tracker, numbers: impl IntoIterator<Item = u32>, sent: &Sent) -> Vec<Seen> {
    let seen = numbers.into_iter().map(|number| tracker.take(number, sent)).collect();
    tracker.end_batch();
    seen
}

fn missing(lost: u64, untold: u64, example: u32) -> Missing {
    Missing { lost, untold, example: Some(example) }
}

proptest! {
    #[test]
    fn it_says_what_a_set_of_all_numbers_would_say(numbers in prop::collection::vec(0..400u32, 1..600)) {
        let sent = sent(400, 0..400);
        let (mut tracker, mut had, mut last) = (Tracker::default(), std::collections::HashSet::new(), 0);
        for number in numbers {
            let expected = match (had.insert(number), number >= last) {
                (false, _) => Seen::Doubled,
                (true, true) => Seen::New,
                (true, false) => Seen::OutOfOrder,
            };
            last = last.max(number);
            prop_assert_eq!(tracker.take(number, &sent), expected);
        }
        let missing = tracker.finish(Until::TheEnd, &sent);
        prop_assert_eq!((missing.lost, missing.untold), (400 - had.len() as u64, 0));
        let until_last = (0..last).filter(|number| !had.contains(number)).count() as u64;
        let mut again = Tracker::default();
        for number in &had {
            again.take(*number, &sent);
        }
        prop_assert_eq!(again.finish(Until::ItsLast, &sent).lost, until_last);
    }
}

#[test]
fn a_gap_that_was_told_is_no_loss_and_one_that_was_told_too_small_is() {
    let sent = sent(1000, 0..1000);
    let gap = |told: u64, is_exact: bool| {
        let mut tracker = Tracker::default();
        take(&mut tracker, 0..200, &sent);
        tracker.tell_gap(told, is_exact);
        take(&mut tracker, 500..1000, &sent);
        tracker.finish(Until::TheEnd, &sent)
    };
    assert_eq!(gap(300, true), missing(0, 0, 200));
    assert_eq!(gap(290, true), missing(0, 10, 200));
    assert_eq!(gap(1, false), missing(0, 0, 200));
}

#[test]
fn what_is_missing_beside_a_gap_is_lost() {
    let sent = sent(1000, 0..1000);
    let mut tracker = Tracker::default();
    take(&mut tracker, (0..200).filter(|number| *number != 7), &sent);
    tracker.tell_gap(100, true);
    take(&mut tracker, 300..310, &sent);
    take(&mut tracker, (310..1000).filter(|number| *number != 900), &sent);
    // 7 is within the numbers that the gap may be about: it is next to be had when the gap is told.
    let found = tracker.finish(Until::TheEnd, &sent);
    assert_eq!((found.lost, found.untold), (1, 1));
}

#[test]
fn what_a_returning_viewer_is_not_given_is_a_gap_untold() {
    let sent = sent(300, 0..300);
    let mut tracker = Tracker::default();
    take(&mut tracker, 0..100, &sent);
    tracker.open_seam();
    take(&mut tracker, 110..120, &sent);
    take(&mut tracker, 120..300, &sent);
    assert_eq!(tracker.finish(Until::TheEnd, &sent), missing(0, 10, 100));
}

#[test]
fn what_was_left_out_and_told_is_not_missing() {
    let sent = sent(300, 0..300);
    let mut tracker = Tracker::default();
    for third in 0..100 {
        take(&mut tracker, [third * 3], &sent);
        tracker.tell_left_out(if third == 0 { 0 } else { 2 });
    }
    assert_eq!(tracker.clone().finish(Until::ItsLast, &sent).lost, 0);
    // The two at the end nobody has told yet.
    assert_eq!(tracker.finish(Until::TheEnd, &sent).lost, 2);
}

#[test]
fn one_that_never_came_is_missing_when_the_window_has_passed_and_late_when_it_comes() {
    let count = WINDOW + 1000;
    let sent = sent(count, 0..count);
    let mut tracker = Tracker::default();
    take(&mut tracker, (0..count).filter(|number| *number != 5), &sent);
    assert_eq!(tracker.clone().finish(Until::TheEnd, &sent), missing(1, 0, 5));
    assert!(tracker.next > 900 && tracker.ahead.len() <= WINDOW as usize / 64 + 1, "{}", tracker.next);
    assert_eq!(tracker.take(5, &sent), Seen::OutOfOrder);
    assert_eq!(tracker.take(5, &sent), Seen::Doubled);
    assert_eq!(tracker.finish(Until::TheEnd, &sent).lost, 0);
}

#[test]
fn what_was_refused_or_is_unanswered_is_not_owed() {
    let mut sent = sent(3, 0..3);
    let (refused, unanswered) = (sent.push(0, 0), sent.push(0, 0));
    sent.settle(refused, State::Refused).unwrap();
    let last = sent.push(0, 0);
    sent.settle(last, State::Acknowledged).unwrap();
    let mut tracker = Tracker::default();
    take(&mut tracker, [0, 1, 2, last], &sent);
    assert_eq!(tracker.next, unanswered);
    assert!(tracker.is_whole(&sent));
    assert_eq!(tracker.finish(Until::TheEnd, &sent), Missing::default());
}

#[test]
fn a_viewer_takes_little_memory_however_far_it_falls_back() {
    let mut sent = Sent::default();
    let mut tracker = Tracker::default();
    for number in 0..1_000_000 {
        sent.push(0, 0);
        sent.settle(number, State::Acknowledged).unwrap();
        if number % 100_000 == 99_999 {
            take(&mut tracker, [number], &sent);
            assert!(tracker.ahead.len() <= WINDOW as usize / 64 + 1 && tracker.late.len() <= LATE);
        }
    }
    assert!(std::mem::size_of::<Conn>() < 512, "{}", std::mem::size_of::<Conn>());
}

use super::super::conn::Conn;
