//! Who sits where: rooms with their viewers and senders.

/// One room's share of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seat {
    /// Viewers; at least one.
    pub viewers: u32,
    /// How many of them send; at least one.
    pub senders: u32,
    /// The room's part of all comments; the parts of all rooms are 1 together.
    pub part: f64,
}

/// All rooms.
#[derive(Clone, Debug, PartialEq)]
pub struct Seating {
    /// The rooms, the largest first.
    pub rooms: Vec<Seat>,
}

impl Seating {
    /// Spreads viewers and senders over the rooms by Zipf's law: the n-th room's part goes as 1/n^skew. There have to be at
    /// least as many viewers as rooms; each room has at least one, who sends.
    #[must_use]
    pub fn new(rooms: u32, skew: f64, viewers: u32, senders: u32) -> Self {
        let weights: Vec<f64> = (1..=rooms).map(|n| f64::from(n).powf(-skew)).collect();
        let sum: f64 = weights.iter().sum();
        let parts: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let seats = spread(viewers, &parts).into_iter().zip(spread(senders, &parts)).zip(&parts);
        let rooms = seats
            .map(|((viewers, senders), &part)| Seat { viewers, senders: senders.clamp(1, viewers), part })
            .collect();
        Self { rooms }
    }

    /// The same with as many senders in each room as its part of so many, rounded up; no more than it has viewers.
    #[must_use]
    pub fn with_enough_senders(mut self, senders: f64) -> Self {
        for room in &mut self.rooms {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as many as fit are enough")]
            let enough = (senders * room.part).ceil() as u32;
            room.senders = enough.clamp(1, room.viewers);
        }
        self
    }

    /// All viewers.
    #[must_use]
    pub fn viewers(&self) -> u32 {
        self.rooms.iter().map(|room| room.viewers).sum()
    }

    /// All senders.
    #[must_use]
    pub fn senders(&self) -> u32 {
        self.rooms.iter().map(|room| room.senders).sum()
    }
}

/// Gives one to each and spreads the rest by the parts, so that the sum is `total` where that is at least one for each.
fn spread(total: u32, parts: &[f64]) -> Vec<u32> {
    let rest = f64::from(total.saturating_sub(u32::try_from(parts.len()).unwrap_or(u32::MAX)));
    let (mut upto, mut given) = (0.0, 0.0);
    let share = |part: &f64| {
        upto += part * rest;
        // Rounded as a running sum: what one share is rounded by, the next makes good.
        let own = (upto.round() - given).max(0.0);
        given += own;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole and at most total")]
        let own = own as u32;
        own + 1
    };
    parts.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nobody_is_left_standing(rooms in 1..300u32, more in 0..5000u32, senders in 1..500u32, skew in 0.0..2.0f64) {
            let seating = Seating::new(rooms, skew, rooms + more, senders);
            prop_assert_eq!(seating.viewers(), rooms + more);
            prop_assert_eq!(seating.rooms.len(), rooms as usize);
            prop_assert!(seating.rooms.iter().all(|room| room.senders >= 1 && room.senders <= room.viewers));
            prop_assert!((seating.rooms.iter().map(|room| room.part).sum::<f64>() - 1.0).abs() < 1e-9);
            if skew > 0.0 && rooms > 1 {
                prop_assert!(seating.rooms[0].viewers + 1 >= seating.rooms[rooms as usize - 1].viewers);
            }
        }
    }

    #[test]
    fn each_room_has_as_many_senders_as_its_part_of_the_comments_needs() {
        let seating = Seating::new(500, 1.0, 5000, 1000).with_enough_senders(1000.0);
        assert!(seating.rooms.iter().all(|room| f64::from(room.senders) >= 1000.0 * room.part), "{seating:?}");
        // Of 1 + 1/2 + … + 1/500 = 6.79.
        assert_eq!((seating.rooms[0].senders, seating.rooms[499].senders), (148, 1));
    }

    #[test]
    fn the_first_room_of_a_thousand_has_a_large_part() {
        let seating = Seating::new(1000, 1.0, 10_000, 1000);
        // Of 1 + 1/2 + … + 1/1000 = 7.49.
        assert!((1200..1205).contains(&seating.rooms[0].viewers), "{:?}", seating.rooms[0]);
        assert!(seating.rooms[999].viewers <= 3);
    }
}
