//! rollout for users, rolloutctl for operators
