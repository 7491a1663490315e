// The main function of every test program with Catch2 2; Catch2 3 brings a compiled one.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
