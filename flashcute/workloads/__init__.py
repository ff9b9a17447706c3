"""What is measured and tested: data as models make it."""
