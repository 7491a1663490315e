// The main function of the test programs with Catch2 2. Catch2 3 has a compiled one.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
