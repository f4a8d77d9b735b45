//! Whether a draft becomes a comment: the rules of text and style, and how fast a user may send.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::model::{Draft, Identity, Refusal, Style, Text, TextLimits, UserId};

/// What drafts must keep to.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionConfig {
    /// Limits of a text.
    pub text: TextLimits,
    /// Time between two comments of one user, on average; zero for no limit.
    pub min_interval: Duration,
    /// How many comments a user may send at once after a pause.
    pub burst: NonZeroU32,
}

/// A draft that was found good.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What it says.
    pub text: Text,
    /// How it looks.
    pub style: Style,
}

/// Judges drafts. The limit is kept for each user, wherever it sends from and in whatever room.
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    limiter: Option<DefaultKeyedRateLimiter<UserId>>,
    clock: DefaultClock,
}

impl Admission {
    /// Nobody has sent anything yet.
    #[must_use]
    pub fn new(config: AdmissionConfig) -> Self {
        let quota = Quota::with_period(config.min_interval).map(|quota| quota.allow_burst(config.burst));
        Self { config, limiter: quota.map(RateLimiter::keyed), clock: DefaultClock::default() }
    }

    /// What drafts must keep to.
    #[must_use]
    pub fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// Judges a draft. One that breaks a rule does not count against the user's rate.
    ///
    /// # Errors
    /// The [`Refusal`] for the sender.
    pub fn judge(&self, who: &Identity, draft: &Draft) -> Result<Judged, Refusal> {
        let text = Text::parse(&draft.text, &self.config.text)?;
        let style = Style::parse(draft.mode, draft.color, draft.size)?;
        if let Some(limiter) = &self.limiter {
            limiter
                .check_key(&who.uid)
                .map_err(|until| Refusal::RateLimited { retry_after: until.wait_time_from(self.clock.now()) })?;
        }
        Ok(Judged { text, style })
    }

    /// Forgets users whose allowance is full again.
    pub fn sweep(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }

    /// How many users are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.limiter.as_ref().map_or(0, RateLimiter::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::test_identity as guest;

    fn admission(min_interval: Duration, burst: u32) -> Admission {
        let text = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };
        Admission::new(AdmissionConfig { text, min_interval, burst: NonZeroU32::new(burst).unwrap() })
    }

    fn draft(text: &str) -> Draft {
        Draft { text: text.into(), ..Draft::default() }
    }

    #[test]
    fn who_sends_too_fast_is_told_when_to_come_back() {
        let admission = admission(Duration::from_secs(3600), 2);
        let who = guest("a");
        for _ in 0..2 {
            admission.judge(&who, &draft("hi")).unwrap();
        }
        let refusal = admission.judge(&who, &draft("hi")).unwrap_err();
        let wait = refusal.retry_after().unwrap();
        assert!(wait > Duration::from_secs(3500) && wait <= Duration::from_secs(3600), "{wait:?}");
        admission.judge(&guest("b"), &draft("hi")).unwrap();
    }

    #[test]
    fn a_bad_draft_does_not_count_against_the_rate() {
        let admission = admission(Duration::from_secs(3600), 1);
        let who = guest("a");
        assert_eq!(admission.judge(&who, &draft("")).unwrap_err().code(), "text_blank");
        let bad_mode = Draft { mode: Some(9), ..draft("hi") };
        assert_eq!(admission.judge(&who, &bad_mode).unwrap_err().code(), "bad_mode");
        admission.judge(&who, &draft("hi")).unwrap();
    }

    #[test]
    fn users_are_forgotten_once_their_allowance_is_full_again() {
        let admission = admission(Duration::from_nanos(1), 1);
        admission.judge(&guest("a"), &draft("hi")).unwrap();
        while admission.remembered() > 0 {
            admission.sweep();
        }
    }

    #[test]
    fn no_interval_is_no_limit() {
        let admission = admission(Duration::ZERO, 1);
        assert!((0..1000).all(|_| admission.judge(&guest("a"), &draft("hi")).is_ok()));
    }
}
