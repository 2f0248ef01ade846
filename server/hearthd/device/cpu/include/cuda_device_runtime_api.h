// Here so that programs can include it; everything in it is known to every kernel already (hearth/shim.h).
#pragma once
