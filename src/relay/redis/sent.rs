//! What becomes of messages that were sent in one round trip. Pure.
//!
//! Redis may take some of them and refuse others, though they are of one room: it runs out of memory in between, or has
//! some again. A message must not come after a later one of its room, for who has had that one passes over what was before.

use std::collections::{HashMap, HashSet};

use redis::{RedisError, RedisResult, Value};

use super::publisher::Outgoing;

/// Each kind in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) published: Vec<Outgoing>,
    /// May be published in another way at once.
    pub(super) refused: Vec<Outgoing>,
    /// To be sent again.
    pub(super) failed: Vec<Outgoing>,
    /// Not published, while a later one of their room was.
    pub(super) overtaken: Vec<Outgoing>,
    /// Why the first of the failed was.
    pub(super) error: Option<RedisError>,
}

impl Sent {
    /// Sorts messages by their answers.
    pub(super) fn sort(
        messages: Vec<Outgoing>,
        answers: Vec<RedisResult<Value>>,
        is_refusal: impl Fn(&RedisError) -> bool,
    ) -> Self {
        if answers.iter().all(Result::is_ok) {
            return Self { published: messages, ..Self::default() };
        }
        let is_published = answers.iter().map(Result::is_ok);
        let published = messages.iter().zip(is_published).enumerate().filter(|(_, (_, is_published))| *is_published);
        let newest: HashMap<_, _> = published.map(|(place, (message, _))| (message.room.clone(), place)).collect();
        let (mut sent, mut waits) = (Self::default(), HashSet::new());
        for (place, (message, answer)) in messages.into_iter().zip(answers).enumerate() {
            let is_overtaken = newest.get(&message.room).is_some_and(|newest| place < *newest);
            match answer {
                Ok(_) => sent.published.push(message),
                Err(_) if is_overtaken => sent.overtaken.push(message),
                Err(error) if is_refusal(&error) && !waits.contains(&message.room) => sent.refused.push(message),
                Err(error) => {
                    waits.insert(message.room.clone());
                    sent.failed.push(message);
                    sent.error.get_or_insert(error);
                }
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, ServerErrorKind};

    use super::super::Lost;
    use super::*;
    use crate::model::{RoomId, Timestamp};

    /// Sends messages with these answers, each of a room: taken (`+`), refused (`-`) or failed (`?`). Gives the places of
    /// the published, the refused, the failed and the overtaken.
    fn sort(sent: &[(&str, char)]) -> [Vec<u64>; 4] {
        let message = |(place, (room, _)): (usize, &(&str, char))| {
            let lost = Lost { count: place as u64, since: Timestamp::MAX };
            Outgoing::new(RoomId::parse(room).unwrap(), Vec::new(), lost)
        };
        let answer = |(_, answer): &(&str, char)| match answer {
            '+' => Ok(Value::Int(1)),
            '-' => Err(RedisError::from((ErrorKind::Server(ServerErrorKind::ResponseError), "refused"))),
            _ => Err(RedisError::from((ErrorKind::Io, "failed"))),
        };
        let messages = sent.iter().enumerate().map(message).collect();
        let sorted = Sent::sort(messages, sent.iter().map(answer).collect(), |error| error.kind() != ErrorKind::Io);
        assert_eq!(sorted.error.is_some(), !sorted.failed.is_empty());
        [sorted.published, sorted.refused, sorted.failed, sorted.overtaken]
            .map(|messages| messages.iter().map(|message| message.stands_for.count).collect())
    }

    #[test]
    fn no_message_comes_after_a_later_one_of_its_room() {
        let [published, refused, failed, overtaken] =
            sort(&[("r", '-'), ("s", '-'), ("r", '+'), ("r", '-'), ("r", '-'), ("s", '-'), ("t", '+')]);
        assert_eq!((published, refused), (vec![2, 6], vec![1, 3, 4, 5]));
        assert_eq!((failed, overtaken), (vec![], vec![0]));
        let [published, refused, failed, overtaken] =
            sort(&[("r", '?'), ("r", '-'), ("s", '-'), ("t", '?'), ("t", '+'), ("r", '?')]);
        assert_eq!((published, refused), (vec![4], vec![2]), "the second of r waits for the first");
        assert_eq!((failed, overtaken), (vec![0, 1, 5], vec![3]));
        assert_eq!(sort(&[("r", '+'), ("s", '+')]), [vec![0, 1], vec![], vec![], vec![]]);
    }
}
