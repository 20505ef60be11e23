//! Owns: stubs for the methods of services that fake members do not implement.
//!
//! Invariant: each answers `UNIMPLEMENTED`, so a test that needs one fails with that error.
//! Absent: real services. They implement every method, and the compiler checks that.

/// Implements methods of a service that no test calls: `list_workers(ListWorkersRequest) -> ListWorkersResponse`. It
/// does not support streams.
///
/// `async_trait` expands a service's trait but not a macro inside an implementation, so this macro writes the expanded
/// signature.
#[doc(hidden)]
#[macro_export]
macro_rules! unanswered {
    ($($method:ident($request:ident) -> $response:ident),+ $(,)?) => {$(
        fn $method<'life0, 'async_trait>(
            &'life0 self,
            _: ::tonic::Request<$crate::v1::$request>,
        ) -> ::core::pin::Pin<
            ::std::boxed::Box<
                dyn ::core::future::Future<
                        Output = ::core::result::Result<
                            ::tonic::Response<$crate::v1::$response>,
                            ::tonic::Status,
                        >,
                    > + ::core::marker::Send
                    + 'async_trait,
            >,
        >
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            ::std::boxed::Box::pin(async {
                Err(::tonic::Status::unimplemented("no test asks for this"))
            })
        }
    )+};
}

/// Leaves out all methods of `Cluster` except `status` and `counters`, and the given methods.
#[doc(hidden)]
#[macro_export]
macro_rules! unanswered_cluster {
    ($($also:tt)*) => {
        $crate::unanswered! {
            list_workers(ListWorkersRequest) -> ListWorkersResponse,
            request_digest(RequestDigestRequest) -> RequestDigestResponse,
            digests(DigestsRequest) -> DigestsResponse,
            bootstrap(BootstrapRequest) -> BootstrapResponse,
            cordon_worker(CordonWorkerRequest) -> CordonWorkerResponse,
            upgrade_cluster(UpgradeClusterRequest) -> UpgradeClusterResponse,
            drain_worker(DrainWorkerRequest) -> DrainWorkerResponse,
            list_settings(ListSettingsRequest) -> ListSettingsResponse,
            set_setting(SetSettingRequest) -> SetSettingResponse,
            $($also)*
        }
    };
}
