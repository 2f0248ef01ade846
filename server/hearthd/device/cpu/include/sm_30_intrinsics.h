// Empty, for programs that include it: hearth/shim.h defines its contents for every kernel.
#pragma once
