//! What was wrong with what viewers received.

use serde::{Deserialize, Serialize};

/// How many examples are kept of all faults together.
pub const MAX_EXAMPLES: usize = 20;

/// The kinds of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A comment that was acknowledged, and that a viewer who was there never received.
    #[default]
    Lost,
    /// A comment that a viewer received twice.
    Doubled,
    /// A comment that a viewer received before one that came first.
    OutOfOrder,
    /// A comment that a viewer of another room received.
    WrongRoom,
    /// A comment whose text or sender is not what was sent.
    Damaged,
    /// Comments that the cursor passed over without a word.
    GapUntold,
    /// Comments that a viewer who read as fast as it could was told it had missed.
    GapTold,
}

impl Fault {
    /// Every kind, the worst first.
    pub const ALL: [Self; 7] =
        [Self::Lost, Self::Doubled, Self::OutOfOrder, Self::WrongRoom, Self::Damaged, Self::GapUntold, Self::GapTold];

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::OutOfOrder => "out of order",
            Self::WrongRoom => "wrong room",
            Self::Damaged => "damaged",
            Self::GapUntold => "gap untold",
            Self::GapTold => "gap told",
        }
    }

    /// What it means, for people.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Lost => "acknowledged, and never received by a viewer who was there",
            Self::Doubled => "received twice by one viewer",
            Self::OutOfOrder => "received before a comment that came first",
            Self::WrongRoom => "received in a room it was not sent to",
            Self::Damaged => "received with another text or sender than was sent",
            Self::GapUntold => "passed over by the cursor without a word",
            Self::GapTold => "missed by a viewer who read as fast as it could, and told so",
        }
    }
}

/// How many deliveries were wrong, by kind, with examples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Faults {
    /// [`Fault::Lost`], counted per viewer.
    pub lost: u64,
    /// [`Fault::Doubled`], counted per viewer.
    pub doubled: u64,
    /// [`Fault::OutOfOrder`], counted per viewer.
    pub out_of_order: u64,
    /// [`Fault::WrongRoom`], counted per viewer.
    pub wrong_room: u64,
    /// [`Fault::Damaged`], counted per viewer.
    pub damaged: u64,
    /// [`Fault::GapUntold`], in comments, per viewer.
    pub gaps_untold: u64,
    /// [`Fault::GapTold`], in comments, per viewer. Viewers that read slowly on purpose are not in here.
    pub gaps_told: u64,
    /// The first of them, at most [`MAX_EXAMPLES`].
    pub examples: Vec<FaultExample>,
}

impl Faults {
    /// How many of one kind.
    #[must_use]
    pub fn count(&self, fault: Fault) -> u64 {
        match fault {
            Fault::Lost => self.lost,
            Fault::Doubled => self.doubled,
            Fault::OutOfOrder => self.out_of_order,
            Fault::WrongRoom => self.wrong_room,
            Fault::Damaged => self.damaged,
            Fault::GapUntold => self.gaps_untold,
            Fault::GapTold => self.gaps_told,
        }
    }

    /// How many of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        Fault::ALL.into_iter().fold(0, |sum, fault| sum.saturating_add(self.count(fault)))
    }

    /// The kinds that happened, with their counts.
    pub fn happened(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.into_iter().map(|fault| (fault, self.count(fault))).filter(|(_, count)| *count > 0)
    }
}

/// One fault, so that it can be looked into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FaultExample {
    /// Which kind.
    pub fault: Fault,
    /// The viewer's number in this test.
    pub viewer: u64,
    /// The room that the viewer was in.
    pub room: String,
    /// The comment's id, empty if there is none to name.
    pub id: String,
    /// What was expected and what came.
    pub detail: String,
}
