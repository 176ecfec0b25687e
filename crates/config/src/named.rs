//! Enums whose variants have names: each name is said once.

/// Makes an enum, `ALL` of its variants, and the method of this name, which gives a variant's.
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $name:ident by $method:ident {
            $($(#[$of_variant:meta])* $variant:ident = $text:expr,)+
        }
    ) => {
        $(#[$attribute])*
        $visible enum $name {
            $($(#[$of_variant])* $variant,)+
        }

        impl $name {
            /// All of them.
            #[allow(dead_code, reason = "not each enum is gone through")]
            $visible const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// The name: for people, and where it is written.
            #[must_use]
            $visible const fn $method(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}
