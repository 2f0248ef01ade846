#pragma once
#include <cub/hearth_device.cuh>
