//! Members: elections, failover, membership, backups and upgrades.

mod backup;
mod clocks;
mod deposed_leaders;
mod event_readers;
mod events;
mod fencing;
mod golden_data;
mod latency;
mod long_outage;
mod member_events;
mod membership;
mod replicas_agree;
mod restarts;
mod rolling_restart;
mod rolling_upgrade;
mod upgrade;
mod without_quorum;
